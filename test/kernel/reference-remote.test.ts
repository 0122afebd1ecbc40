// The oracle's remote keys under the contract of all backends.
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import { testRemoteKeys } from '../contract/backend-remote.ts';

testRemoteKeys(new ReferenceBackend(), 2);

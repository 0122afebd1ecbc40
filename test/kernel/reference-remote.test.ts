// The contract of remote keys for the reference backend.
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import { testRemoteKeys } from '../contract/backend-remote.ts';

testRemoteKeys(new ReferenceBackend(), 2);

// The simulator's network keeps the contract of messengers.
import { messengerContract } from './messenger.ts';
import { simulatedEnds } from './simulated-messenger.ts';

messengerContract("the simulator's network", simulatedEnds);

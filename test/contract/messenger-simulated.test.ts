// The contract of messengers for the simulator's network.
import { messengerContract } from './messenger.ts';
import { simulatedEnds } from './simulated-messenger.ts';

messengerContract("the simulator's network", simulatedEnds);

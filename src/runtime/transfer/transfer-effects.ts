// What an instance asks to be done about prompts and prefixes that go from one instance to another.

import type { TokenInstance } from '../../core/instance/token-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { LiveHandOffs } from './live-hand-offs.ts';

type PrefixEffect = 'expectPrefix' | 'closePrefix' | 'streamPrefix';
export type HandOffEffect = Extract<
  InstanceEffect,
  { kind: 'send' | 'stream' | 'stopStream' | 'haltStream' | 'openLanding' | 'closeLanding' | PrefixEffect }
>;

export function handOver(handOffs: LiveHandOffs, effect: HandOffEffect, pools: TokenInstance['pools']): void {
  switch (effect.kind) {
    case 'send':
      handOffs.send(effect.to, effect.message);
      break;
    case 'stream':
      handOffs.stream(effect, pools);
      break;
    case 'stopStream':
      if (effect.of === 'prefix') handOffs.prefixes.stop(effect.to, effect.id);
      else handOffs.stop(effect.to, effect.id);
      break;
    case 'haltStream':
      handOffs.halt(effect);
      break;
    case 'expectPrefix':
      handOffs.prefixes.expect(effect);
      break;
    case 'closePrefix':
      handOffs.prefixes.close(effect.id);
      break;
    case 'streamPrefix':
      handOffs.prefixes.stream(effect);
      break;
    case 'openLanding':
      handOffs.open(effect.id, effect.pages);
      break;
    case 'closeLanding':
      handOffs.close(effect.id);
      break;
  }
}

// The prefixes that prompts share, as a tree with prompts, hits and bytes.
import { compact, element, percent, whole } from '../drawing/format.mjs';
import { barLine } from './latency.mjs';

export class Prefixes {
  title = 'Prefixes';
  #note = element('p');
  #tree = element('div', { className: 'tree' });

  constructor(place) {
    place.append(
      element(
        'div',
        { className: 'card', id: 'prefixes' },
        element('h2', {}, 'Shared prefixes'),
        this.#note,
        this.#tree,
      ),
    );
  }

  draw({ frame }) {
    const { prefixes, block_tokens: tokens, block_bytes: bytes } = frame;
    this.#note.textContent =
      prefixes.length === 0
        ? 'no two prompts have shared a block'
        : 'runs of tokens by the start of their last block hash, and the instances that hold them; the bar is the share of lookups that hit';
    const children = new Map();
    for (const prefix of prefixes) {
      const parent = prefix.parent ?? 0;
      children.set(parent, [...(children.get(parent) ?? []), prefix]);
    }
    const lines = [];
    const add = (prefix, level) => {
      const { id, hash, depth, blocks, prompts, hitBlocks, holders } = prefix;
      const size =
        tokens > 0 ? `${whole(tokens * depth)} to ${whole(tokens * (depth + blocks))}` : `${whole(blocks)} blocks`;
      const held = bytes > 0 ? `${compact(bytes * blocks)} bytes on ${whole(holders)}` : `on ${whole(holders)}`;
      const hits = `${whole(prompts)} prompts, ${compact(hitBlocks * Math.max(1, tokens))} tokens hit, ${held}`;
      const line = barLine(`${hash}: ${size}`, Math.min(1, hitBlocks / (blocks * prompts)), hits, 'green');
      line.title = `${percent(hitBlocks / (blocks * prompts))} of the lookups were hits; ${whole(holders)} instances hold the last block`;
      line.firstChild.style.paddingLeft = `${14 * Math.min(level, 6)}px`;
      lines.push(line);
      for (const child of children.get(id) ?? []) add(child, level + 1);
    };
    // A parent outside the frame leaves its children at the top.
    const known = new Set(prefixes.map(({ id }) => id));
    for (const prefix of prefixes) if (!known.has(prefix.parent)) add(prefix, 0);
    this.#tree.replaceChildren(...lines);
  }
}

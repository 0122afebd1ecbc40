// How many layers each member of a group runs, where some compute faster than others.

/** Times that differ by less than half of this are taken to be equal: what is learned of them varies by as much. */
const stepsPerDoubling = 6;

/**
 * (members): whole layers, one at least, so that the one that takes longest is done first; of those that compute alike the first have one
 * more where layers do not come out even. Undefined: all compute alike.
 * @param layerUs (members) what a layer takes each
 */
export function splitLayers(layers: number, layerUs: readonly number[]): readonly number[] | undefined {
  const least = Math.min(...layerUs);
  const slowness = layerUs.map((us) => 2 ** (Math.round(stepsPerDoubling * Math.log2(us / least)) / stepsPerDoubling));
  if (slowness.every((each) => each === 1)) return undefined;
  const shares = slowness.map(() => 1);
  for (let left = layers - shares.length; left > 0; left--) {
    let next = 0;
    for (let i = 1; i < shares.length; i++)
      if ((shares[i] + 1) * slowness[i] < (shares[next] + 1) * slowness[next]) next = i;
    shares[next]++;
  }
  return shares;
}

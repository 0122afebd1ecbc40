// Splits the layers of the model between members of different speed.

/** Speeds are rounded to this many steps per factor of two: learned times vary by about one step. */
const stepsPerDoubling = 6;

/**
 * (members): whole layers, at least one each, such that the last member to end ends earliest; among equals, the first members get the
 * remainder. Undefined: all members are equally fast.
 * @param layerUs (members) time of one layer
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

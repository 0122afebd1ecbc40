// Renders the Helm chart with helm ($HELM, or the one on PATH) for the offline checks of deploy.test.ts, without its NATS dependency.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { pathToFileURL } from 'node:url';
import { hash } from './build-native.mjs';
import { filesUnder } from './files.mjs';
import { root } from './root.mjs';

const chart = join(root, 'deploy', 'helm', 'kvasir');
const renderedFolder = join(root, 'test', 'data', 'chart');

/** Values of each rendering beside those of values.yaml. Without tokens helm would draw them. */
const tokens = ['cluster.secret.token=0123456789abcdef', 'cluster.secret.natsToken=0123456789abcdef'];
const everything = [
  ...tokens,
  'store.replicas=1',
  'model.source=/models/model.gguf',
  'model.existingClaim=models',
  'model.hubSecret=hub',
  'gateway.apiKeys=keys: []',
  'serviceMonitor.enabled=true',
  'serviceMonitor.adminKeySecret=admin',
  'prefill.kvMemory=4g',
  'decode.ssd=50Gi',
  'decode.hostMemory=2g',
];
export const renderings = { default: tokens, everything };

/** Identifies the chart, so that a rendering of other templates is noticed. */
export function chartId() {
  const files = filesUnder(chart).filter((path) => statSync(path).isFile());
  return hash(files.flatMap((path) => [relative(chart, path), readFileSync(path, 'utf8')]));
}

export function renderingPath(name) {
  return join(renderedFolder, `${name}.yaml`);
}

/** @returns the manifests as helm prints them, after a line with the id of the chart */
export function render(name, helm) {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-chart-'));
  try {
    cpSync(chart, folder, { recursive: true });
    const stub = join(folder, 'charts', 'nats');
    mkdirSync(stub, { recursive: true });
    writeFileSync(join(stub, 'Chart.yaml'), 'apiVersion: v2\nname: nats\nversion: 1.0.0\n');
    const sets = renderings[name].flatMap((each) => ['--set', each]);
    const { status, stdout, stderr } = spawnSync(helm, ['template', 'release', folder, ...sets], { encoding: 'utf8' });
    if (status !== 0) throw new Error(`Cannot render the chart: ${stderr ?? 'helm does not run'}`);
    return `# chart ${chartId()}, rendered by scripts/render-chart.mjs\n${stdout}`;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  mkdirSync(renderedFolder, { recursive: true });
  for (const name of Object.keys(renderings))
    writeFileSync(renderingPath(name), render(name, process.env.HELM ?? 'helm'));
}

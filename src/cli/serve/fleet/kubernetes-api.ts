// Which API of Kubernetes a fleet file means: the one it names, or that of the pod in which the gateway runs.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { KubernetesApi } from '../../../runtime/fleet/kubernetes/pod-watcher.ts';
import { UsageError } from '../../usage-error.ts';

/** Where Kubernetes mounts the service account of a pod. */
const accountFolder = '/var/run/secrets/kubernetes.io/serviceaccount';

/** @throws UsageError if the file names none, and this is no pod with a service account */
export function kubernetesApi(
  given: KubernetesApi | undefined,
  namespace: string | undefined,
  env: NodeJS.ProcessEnv = process.env,
  folder = accountFolder,
): { readonly api: KubernetesApi; readonly namespace: string } {
  if (given !== undefined) return { api: given, namespace: namespace ?? 'default' };
  const { KUBERNETES_SERVICE_HOST: host, KUBERNETES_SERVICE_PORT: port = '443' } = env;
  const [tokenFile, caFile, namespaceFile] = ['token', 'ca.crt', 'namespace'].map((name) => join(folder, name));
  if (!host || !existsSync(tokenFile))
    throw new UsageError(
      `Cannot read kubernetes of the fleet: this is no pod with a service account (${tokenFile}): add api.url`,
    );
  const url = `https://${host.includes(':') ? `[${host}]` : host}:${port}`;
  const own = existsSync(namespaceFile) ? readFileSync(namespaceFile, 'utf8').trim() : 'default';
  return { api: { url, tokenFile, caFile }, namespace: namespace ?? own };
}

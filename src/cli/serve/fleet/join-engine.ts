// `kvasir join --engine`: an external engine serves the gateways of a NATS cluster.
import { engineRoot } from '../../../core/fleet/engine-root.ts';
import { modelFingerprint } from '../../../engine/fingerprint.ts';
import { isLoopbackAddress, type NatsServers } from '../../../runtime/bus/nats-connection.ts';
import type { EngineRole } from '../../../runtime/fleet/engine-dialect.ts';
import { JoinedEngine } from '../../../runtime/fleet/joined-engine.ts';
import { agreeOn, tokenDigest } from '../../../runtime/processes/agree.ts';
import { announceLoading, endsWithin } from '../../../runtime/processes/join.ts';
import { Completion } from '../../../runtime/threads/completion.ts';
import type { JoinOptions } from '../../options/options.ts';
import { clusterToken } from '../host/cluster-token.ts';
import { openLog } from '../host/server-log.ts';
import { pagesHost, processName, withModel } from '../open-cluster.ts';
import { exitAfterWrites, stopSignal } from '../stop-signal.ts';

export interface JoinEngineOptions extends JoinOptions {
  readonly engine: string;
  /** In place of what the engine states. */
  readonly engineRole: EngineRole | undefined;
}

interface EngineMember {
  readonly joined: JoinedEngine;
  readonly name: string;
  /** Resolves with the reason when the process is no longer a member of the cluster. */
  readonly ended: Promise<string>;
  close(): Promise<void>;
}

/** Serves until SIGTERM or SIGINT. The engine joins whenever it answers. @throws Error in one line */
export async function serveEngine(nats: NatsServers, options: JoinEngineOptions): Promise<void> {
  const { log } = openLog(options, options.name === undefined ? {} : { instance: options.name });
  const { joined, name, ended, close } = await openEngine(nats, options, log);
  try {
    console.log(joined.serving > 0 ? `Joined as ${name}` : `Engine ${options.engine} joins as ${name} when it serves`);
    const end = await Promise.race([stopSignal(), ended]);
    if (typeof end === 'string') throw new Error(`Cannot continue serving: ${end}`);
    log(`Draining: new requests go elsewhere, and running ones finish within ${options.drainTimeout} s`);
    const finished = await endsWithin(joined.drain(), 1000 * options.drainTimeout);
    log(finished ? 'Leaving' : 'Leaving: running requests continue on other instances');
  } finally {
    await close();
    exitAfterWrites();
  }
}

function openEngine(
  nats: NatsServers,
  options: JoinEngineOptions,
  log: (message: string) => void,
): Promise<EngineMember> {
  return withModel(nats, options, log, async (bus, files) => {
    const stopped = new Completion();
    const { name } = processName(options.name);
    const root = engineRoot(modelFingerprint(files));
    const tokenMark = tokenDigest(clusterToken(options.token));
    const own = { modelFingerprint: root.modelFingerprint, root, tokenMark };
    const agreement = await agreeOn(bus, own, { log, onOverruled: (why) => stopped.end(why) });
    // The process is a member while its engine is down, too.
    const stop = announceLoading(bus);
    const joined = new JoinedEngine({
      ...{ bus, name, agreement, root, vocabSize: files.config.vocabSize, log },
      host: await engineHost(nats, options, log),
      engine: { url: options.engine, apiKey: options.engineKey, role: options.engineRole },
      onReplaced: () => stopped.end(`another process has joined as ${name}`),
    });
    await joined.settled;
    const close = async (): Promise<void> => {
      stop();
      await joined.close();
      await bus.close();
    };
    return { joined, name, ended: stopped.ended, close };
  });
}

/** The host at which decode engines reach the bootstrap server; undefined: that of the engine's URL. */
async function engineHost(
  nats: NatsServers,
  options: JoinEngineOptions,
  log: (message: string) => void,
): Promise<string | undefined> {
  const { hostname } = new URL(options.engine);
  const isLoopback = hostname === 'localhost' || isLoopbackAddress(hostname.replace(/^\[|\]$/g, ''));
  return options.pagesHost === undefined && !isLoopback ? undefined : pagesHost(options, nats, log);
}

// `kvasir dashboard FILE`: shows a recording in a browser, on a page that this command serves.
import { readFileSync } from 'node:fs';
import { basename } from 'node:path';
import { serve } from '@hono/node-server';
import { Command } from 'commander';
import { z } from 'zod';
import { recordingApp } from '../../gateway/dashboard/dashboard-routes.ts';
import { readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { packageFile } from '../package-root.ts';
import { stopSignal } from '../serve/stop-signal.ts';
import { UsageError } from '../usage-error.ts';

const schema = z.object({ port: numeric(z.number().int().min(0).max(65_535)).default(8001) });
const host = '127.0.0.1';

export function dashboardCommand(): Command {
  return new Command('dashboard')
    .argument('<file>', 'recording')
    .option('--port <n>', 'Serve the page at this port of 127.0.0.1; 0: any free one (default: 8001)')
    .action(async (file: string, flags: Record<string, unknown>) => show(file, readOptions(schema, flags).port));
}

/** Serves until SIGTERM or SIGINT. @throws UsageError if the file is no recording */
async function show(file: string, port: number): Promise<void> {
  const app = recordingApp(packageFile('web'), basename(file), readRecording(file));
  const server = serve({ fetch: app.fetch, hostname: host, port });
  await new Promise<void>((resolve, reject) => {
    server.once('listening', resolve);
    server.once('error', (error) => reject(new Error(`Cannot listen on ${host}:${port}: ${error.message}`)));
  });
  const address = server.address();
  const own = typeof address === 'object' ? (address?.port ?? port) : port;
  console.log(`Open http://${host}:${own}/dashboard?run=${encodeURIComponent(basename(file))}`);
  await stopSignal();
  server.close();
  if ('closeAllConnections' in server) server.closeAllConnections();
}

function readRecording(file: string): string {
  const refused = (why: string): UsageError => new UsageError(`Cannot show ${file}: ${why}`);
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    throw refused(error instanceof Error ? (error.message.split('\n')[0] ?? '') : String(error));
  }
  if (!/^\s*\{\s*"object"\s*:\s*"kvasir\.dashboard\.recording"/.test(text.slice(0, 200)))
    throw refused('it is not a recording; simulate --recording and the dashboard write them');
  return text;
}

// `npm run build`: compiles everything that serving needs; `--typescript` leaves the kernels out, as packing does.
import { prepare } from './steps.mjs';

try {
  await prepare(console.log, !process.argv.includes('--typescript'));
  console.log('built');
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}

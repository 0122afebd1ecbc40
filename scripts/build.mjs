// `npm run build`: compiles everything that serving needs.
import { prepare } from './steps.mjs';

try {
  await prepare(console.log);
  console.log('built');
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}

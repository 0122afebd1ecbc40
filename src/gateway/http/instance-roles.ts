// POST /api/instances/N/role: changes the role of an instance.
import { z } from 'zod';
import type { ClusterPort } from '../../core/protocol/ports.ts';
import { parseBody } from '../openai/fields.ts';
import { ApiError } from './errors.ts';

const roleSchema = z.object({ role: z.enum(['mixed', 'prefill', 'decode']) });

/** @throws ApiError 404 for an unknown instance, 400 for an unknown role, 409 if the instance cannot take the role */
export function switchRole(number: string, json: unknown, cluster: ClusterPort): object {
  const instance = /^\d{1,4}$/.test(number) ? Number(number) : undefined;
  const { length } = cluster.roles();
  if (instance === undefined || instance >= length)
    throw new ApiError(404, `Cannot find instance '${number.slice(0, 64)}': there are ${length}, numbered from 0`, {
      code: 'instance_not_found',
    });
  const { role } = parseBody(roleSchema, json);
  const why = cluster.switchRole(instance, role);
  if (why !== undefined)
    throw new ApiError(409, `Cannot make instance ${instance} ${role}: ${why}`, {
      code: 'role_conflict',
      param: 'role',
    });
  return { instance, role };
}

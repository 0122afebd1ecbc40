// Multiple-choice questions from a JSONL file.
import { z } from 'zod';

const choiceSchema = z
  .object({ prompt: z.string().min(1), choices: z.array(z.string().min(1)).min(2), answer: z.number().int().min(0) })
  .refine(({ choices, answer }) => answer < choices.length, 'answer is not an index of choices');

/** `answer` is the index of the right choice. */
export type ChoiceCase = z.infer<typeof choiceSchema>;

/** @throws Error that names the line at fault */
export function parseChoices(text: string): ChoiceCase[] {
  return text.split('\n').flatMap((line, index) => {
    if (line.trim() === '') return [];
    try {
      return [choiceSchema.parse(JSON.parse(line))];
    } catch (error) {
      const why = error instanceof z.ZodError ? error.issues[0]?.message : 'not JSON';
      throw new Error(`Cannot read choices: line ${index + 1}: ${why}`);
    }
  });
}

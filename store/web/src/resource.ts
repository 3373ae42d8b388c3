// SPDX-License-Identifier: Apache-2.0
import { signal } from "@preact/signals";
import { ApiError } from "./api.ts";

/**
 * One kind of answer. A new question aborts the one in flight; an old picture stays until the new one is here.
 * A failed refresh keeps what was there and says so in `error`.
 */
export class Resource<T> {
  readonly value = signal<T | null>(null);
  readonly error = signal<ApiError | null>(null);
  readonly pending = signal(false);
  /** The question that `value` answers. */
  readonly key = signal("");
  private asked = "";
  private abort: AbortController | null = null;

  /** True when it was answered; false when it failed or a newer question overtook it. `accept` may hold an answer back. */
  async load(key: string, fetch: (signal: AbortSignal) => Promise<T>, accept?: (value: T, fresh: boolean) => boolean): Promise<boolean> {
    if (this.abort && this.asked === key) return false; // the same question is on its way
    this.abort?.abort();
    const abort = new AbortController();
    this.abort = abort;
    this.asked = key;
    this.pending.value = true;
    try {
      const value = await fetch(abort.signal);
      if (this.abort !== abort) return false;
      this.error.value = null;
      if (!accept || accept(value, key !== this.key.value)) { this.value.value = value; this.key.value = key; }
      return true;
    } catch (error) {
      if (this.abort !== abort || abort.signal.aborted) return false;
      if (!(error instanceof ApiError)) throw error;
      this.error.value = error;
      return false;
    } finally {
      if (this.abort === abort) { this.abort = null; this.pending.value = false; }
    }
  }
  stop(): void { this.abort?.abort(); this.abort = null; this.pending.value = false; }
}

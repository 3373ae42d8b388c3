// SPDX-License-Identifier: Apache-2.0
// Objects, strings and numbers in Node.js, all of it JIT code. Prints rounds per CPU second on exit (SIGTERM).
'use strict';

let running = true;
process.on('SIGTERM', () => { running = false; });

function digest(text) {
	let hash = 0;
	for (let i = 0; i < text.length; i++)
		hash = (hash * 31 + text.charCodeAt(i)) | 0;
	return hash;
}

function round(n) {
	const groups = new Map();
	for (let i = 0; i < 2000; i++) {
		const key = `k${(i * n) % 97}`;
		groups.set(key, (groups.get(key) || 0) + digest(key + i));
	}
	return [...groups].sort((a, b) => b[1] - a[1]).slice(0, 10);
}

const start = process.hrtime.bigint();
const limit = process.argv[2] ? Number(process.argv[2]) : 1e9;
let rounds = 0;
const seconds = () => Number(process.hrtime.bigint() - start) / 1e9;

function turn() {
	for (let i = 0; i < 20; i++, rounds++)
		round(rounds);
	if (running && seconds() < limit)
		setImmediate(turn);
	else
		console.log((rounds / (process.cpuUsage().user + process.cpuUsage().system) * 1e6).toFixed(1));
}
turn();

// A harness in one process: worker threads of an operator act for windows in turn.
//
// usage: node harness.mjs WINDOWS EDITS WORKERS   (MNT in the environment)
// Prints one JSON line: {edits, refused, wrong: [...]}
import fs from "node:fs";
import { spawnSync } from "node:child_process";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";

const mnt = process.env.MNT;

/** Whether this change is refused as on a read-only filesystem. */
function refused(change) {
  try {
    change();
  } catch (e) {
    if (e.code === "EROFS") return true;
    throw e;
  }
  return false;
}

if (isMainThread) {
  const [windows, edits, workers] = process.argv.slice(-3).map(Number);
  const wrong = [];
  if (!refused(() => fs.writeFileSync(`${mnt}/ws1/early`, ""))) wrong.push("wrote before it was an operator");
  fs.writeFileSync(`${mnt}/.panefs/operators`, "0");

  const work = Array.from({ length: workers }, (_, number) => {
    const worker = new Worker(new URL(import.meta.url), {
      workerData: { number, windows, edits: edits / workers },
    });
    return new Promise((done) => {
      worker.on("message", done);
      worker.on("error", (e) => done({ edits: 0, refused: 0, wrong: [`worker ${number}: ${e}`] }));
    });
  });
  // Meanwhile the operator's main thread may change every occupied workspace, and what it
  // starts is a guest until it is bound.
  for (let n = 1; n <= 10; n++) fs.writeFileSync(`${mnt}/ws${n}/by-operator`, "x");
  const shell = (script) => spawnSync("bash", ["-c", script], { encoding: "utf8" });
  for (const n of [1, 2]) {
    const tried = shell(`echo x > ${mnt}/ws${n}/by-shell`);
    if (tried.status === 0 || !tried.stderr.includes("Read-only file system"))
      wrong.push(`an unbound shell in ws${n}: ${tried.status} ${tried.stderr}`);
  }
  const bound = shell(
    `echo 0 > ${mnt}/.panefs/windows/c2/procs && echo x > ${mnt}/ws2/by-shell && ! echo x > ${mnt}/ws1/by-shell`,
  );
  if (bound.status !== 0) wrong.push(`a bound shell: ${bound.stderr}`);

  const parts = await Promise.all(work);
  const sum = (field) => parts.reduce((all, part) => all + part[field], 0);
  wrong.push(...parts.flatMap((part) => part.wrong));
  console.log(JSON.stringify({ edits: sum("edits"), refused: sum("refused"), wrong }));
} else {
  const { number, windows, edits } = workerData;
  const result = { edits: 0, refused: 0, wrong: [] };
  const acting = `${mnt}/.panefs/acting`;
  for (let i = 0; i < edits; i++) {
    // Each worker its own order, so that all windows are acted for by all workers at once.
    const own = ((i * (2 * number + 1) + number * 7) % windows) + 1;
    const other = (own % windows) + 1;
    fs.writeFileSync(acting, `c${own}`);
    const dir = `${mnt}/ws${own}`;
    const file = `${dir}/by${number}`;
    switch (i % 4) {
      case 0:
        fs.appendFileSync(file, `c${own}\n`);
        break;
      case 1:
        fs.writeFileSync(`${file}.new`, `c${own}\n`);
        fs.renameSync(`${file}.new`, `${file}.whole`);
        break;
      case 2: {
        fs.mkdirSync(`${dir}/d${number}`);
        fs.writeFileSync(`${dir}/d${number}/f`, `c${own}\n`);
        fs.rmSync(`${dir}/d${number}`, { recursive: true });
        break;
      }
      default: {
        const fd = fs.openSync(file, "a+");
        fs.writeSync(fd, `c${own}\n`);
        fs.closeSync(fd);
      }
    }
    result.edits++;
    const stray = `${mnt}/ws${other}/stray-${number}-${i}`;
    const change = [
      () => fs.writeFileSync(stray, ""),
      () => fs.mkdirSync(stray),
      () => fs.appendFileSync(`${mnt}/ws${other}/ground`, ""),
      () => fs.unlinkSync(`${mnt}/ws${other}/ground`),
    ][i % 4];
    if (refused(change)) result.refused++;
    else result.wrong.push(`worker ${number} acting for c${own} changed ws${other} (edit ${i})`);
    if (fs.readlinkSync(`${mnt}/self`) !== `ws${own}`) result.wrong.push(`self of c${own} leads elsewhere`);
  }
  fs.writeFileSync(acting, "-");
  parentPort.postMessage(result);
}

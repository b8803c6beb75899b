/** Colours for code: comments, strings, words and numbers; no more than reading asks for. */

export type Piece = [kind: "" | "c" | "s" | "k" | "n", text: string];

const WORDS: Record<string, string> = {
  python:
    "and as assert break class continue def elif else except False finally for from if import in is lambda None not or pass raise return True try while with yield",
  tw: "kernel for in if else while let alloc copy gemm map reduce fill wait arrive fence commit wait_group sync role turn store load shared fragment global local barrier const",
  cuda: "const constexpr extern template typename struct using namespace return if else for while do switch case break continue auto void int unsigned float double char bool long short static inline asm volatile __global__ __device__ __shared__ __launch_bounds__ __restrict__ true false uint32_t uint64_t int32_t int64_t __half __nv_bfloat16",
  ptx: "mov add mul mad ld st cvta setp bra bar ret wgmma mbarrier cp fence selp cvt shl shr and or",
  sass: "HGMMA UTMALDG UTMASTG SYNCS BAR LDS STS LDG STG FFMA FADD FMUL MUFU IMAD IADD3 LOP3 MOV BRA EXIT ISETP R2UR WARPGROUP UIADD3 ULOP3 USHF S2R LDC ULDC STSM LDSM",
};
const COMMENT: Record<string, string> = {
  python: "#.*",
  tw: "#.*",
  cuda: "//.*|/\\*.*?\\*/",
  ptx: "//.*",
  sass: "/\\*.*?\\*/|//.*",
};

const rules = new Map<string, RegExp>();

function rule(language: string): RegExp {
  const found = rules.get(language);
  if (found) return found;
  const words = (WORDS[language] ?? WORDS.python!).replaceAll(" ", "|");
  const made = new RegExp(
    `(?<c>${COMMENT[language] ?? "#.*"})|(?<s>"(?:[^"\\\\]|\\\\.)*"|'(?:[^'\\\\]|\\\\.)*')|(?<k>\\b(?:${words})\\b)|(?<n>\\b(?:0x[0-9a-fA-F]+|\\d+(?:\\.\\d+)?(?:e[+-]?\\d+)?)\\b)`,
    "g",
  );
  rules.set(language, made);
  return made;
}

export function pieces(line: string, language: string): Piece[] {
  const out: Piece[] = [];
  let at = 0;
  for (const match of line.matchAll(rule(language))) {
    if (match.index > at) out.push(["", line.slice(at, match.index)]);
    const kind = Object.entries(match.groups!).find(
      ([, text]) => text !== undefined,
    )![0] as Piece[0];
    out.push([kind, match[0]]);
    at = match.index + match[0].length;
  }
  if (at < line.length) out.push(["", line.slice(at)]);
  return out;
}

// Written by tools/page/api_types.py from dpmerge.explorer's requests and answers; a test compares them.

interface AccountRequest {
  any_delta?: boolean;
  rule: "selection" | "combination" | "joint";
  weights: Record<string, number>;
  assume_smoothness?: number | null;
  provenance?: "a-priori" | "after-looking" | null;
  delta?: number | null;
  epsilon?: number | null;
  by?: "best" | "pld" | "rdp" | "gdp";
}

interface BudgetAnswer {
  dataset: string;
  adjacency: string;
  budget: TargetAnswer;
  spent: Spent;
  releases: number;
  warnings: Array<string>;
  counted: Array<string>;
  fits: Fits | null;
}

interface EntryAnswer {
  number: number;
  kind: string;
  at: string;
  of: number | null;
  name: string | null;
  rule: string | null;
  models: Array<string>;
  own: Array<TargetAnswer>;
  total: TargetAnswer | null;
  noise: number;
  recipient: string | null;
  hash: string;
}

interface Fits {
  alone: Array<string>;
  in_selection_with: string | null;
  largest_probability: Record<string, number>;
  text: Array<string>;
}

interface FrontierRequest {
  any_delta?: boolean;
  delta?: number;
  epsilons: Array<number>;
  points?: number | null;
}

interface GridAnswer {
  epsilons: Array<number | null>;
  standings: Array<"proved" | "conditional" | "refused" | "none" | "pending">;
}

interface GuaranteeAnswer {
  claim: string;
  sentence: string;
  epsilon: number | null;
  delta: number;
  standing: "proved" | "conditional" | "refused" | "none";
  rule: string;
  by: string;
  weights: Record<string, number>;
  theorem: string;
  theorem_title: string | null;
  theorem_source: string | null;
  assumptions: Array<string>;
  plain_assumptions: Array<string>;
  warnings: Array<string>;
  details: Record<string, any>;
  adjacency: string;
  conversion: string | null;
}

interface Health {
  status: "ok";
  version: string;
}

interface JobAnswer {
  id: string;
  kind: string;
  state: "running" | "done" | "failed" | "cancelled";
  label: string;
  done: number;
  total: number | null;
  problem: string | null;
  result: PlanAnswer | ReleasedAnswer | VerdictAnswer | Record<string, any> | null;
}

interface LineAnswer {
  delta: number;
  range: Array<number>;
  worst: number;
  points: Array<LinePoint>;
  done: number;
  refined: number;
  total: number;
}

interface LinePoint {
  epsilon: number;
  rule: string;
  standing: "proved" | "conditional" | "refused" | "none";
  weights: Record<string, number>;
  noise: number;
  expected_utility: number;
  utility_kind: string;
  predicted_deviation: number | null;
}

interface ModelCard {
  name: string;
  kind: string;
  run: string;
  steps: number | null;
  noise_multiplier: number | null;
  sampling: Sampling | null;
  utility: number | null;
  epsilon: Record<"pld" | "rdp", number | null>;
  standing: "proved" | "conditional" | "refused" | "none";
  warnings: Array<string>;
}

interface ModelsAnswer {
  delta: number;
  models: Array<ModelCard>;
}

interface OptionAnswer {
  claim: string;
  sentence: string;
  epsilon: number | null;
  delta: number;
  standing: "proved" | "conditional" | "refused" | "none";
  rule: string;
  by: string;
  weights: Record<string, number>;
  theorem: string;
  theorem_title: string | null;
  theorem_source: string | null;
  assumptions: Array<string>;
  plain_assumptions: Array<string>;
  warnings: Array<string>;
  details: Record<string, any>;
  noise: number;
  expected_utility: number | null;
  utility_kind: string;
  predicted_deviation: number | null;
  feasible: boolean;
  why: string;
}

interface PlanAnswer {
  target: TargetAnswer;
  aloud: Array<string>;
  provenance: string;
  utilities_source: string;
  why_no_noise: string;
  best: number | null;
  options: Array<OptionAnswer>;
  warming: Warming;
}

interface PlanRequest {
  any_delta?: boolean;
  epsilon: number;
  delta?: number;
  effort?: "quick" | "exact" | "full";
}

interface PortfolioAnswer {
  dataset: string;
  adjacency: string;
  delta: number;
  provenance: string;
  models: Array<string>;
  may_release: boolean;
  has_ledger: boolean;
  glossary: Record<string, string>;
}

interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
}

interface ReleaseFolder {
  name: string;
  entry: number | null;
}

interface ReleasePreview {
  name: string;
  weights: Record<string, number>;
  provenance: string;
  guarantee: GuaranteeAnswer;
  files: Array<string>;
  files_if_drawn: Record<string, Array<string>>;
  keeps_openings: boolean;
  budget: TargetAnswer | null;
  total: TargetAnswer | null;
  fits: boolean | null;
  noise: number;
  after: Array<string>;
  notes: Array<string>;
}

interface ReleaseRequest {
  any_delta?: boolean;
  rule: "selection" | "combination" | "joint";
  weights: Record<string, number>;
  assume_smoothness?: number | null;
  provenance?: "a-priori" | "after-looking" | null;
  name: string;
  delta: number;
  epsilon?: number | null;
  noise?: number;
  recipient?: string | null;
  depends_on_releases?: boolean;
}

interface ReleasedAnswer {
  name: string;
  certificate: Record<string, any>;
  notes: Array<string>;
}

interface ReleasesAnswer {
  entries: Array<EntryAnswer>;
  folders: Array<ReleaseFolder>;
  may_release: boolean;
}

interface Sampling {
  scheme: "poisson" | "full-batch" | "fixed-size" | "shuffle";
  rate: number | null;
}

interface SimplexAnswer {
  delta: number;
  models: Array<string>;
  step: number;
  points: Array<Array<number>>;
  rules: Record<"selection" | "combination", GridAnswer>;
  done: number;
  total: number;
}

interface Spent {
  epsilon: number | null;
  standing: string;
  theorem: string | null;
  assumptions: Array<string>;
}

interface TargetAnswer {
  epsilon: number;
  delta: number;
}

interface VerdictAnswer {
  name: string;
  code: 0 | 1 | 2;
  sentence: string;
  holds: Array<string>;
  broken: Array<string>;
  unchecked: Array<string>;
  warnings: Array<string>;
  uncovered: Array<string>;
  certified: string;
  assumptions: Array<string>;
  epsilon: number | null;
  delta: number | null;
  standing: string;
  granted: Array<string>;
  left_out: Array<string>;
}

interface VerifyRequest {
  name: string;
}

interface Warming {
  done: number;
  total: number;
}

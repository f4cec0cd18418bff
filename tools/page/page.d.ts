// What the page's scripts share besides the API's answers.

type Target = TargetAnswer;
type GridRule = "selection" | "combination";
type Weighted = Record<string, number>;
type Child = Node | string | null | undefined | Child[];
type Attribute = string | number | boolean | null | undefined | ((event: Event) => void);

interface Known {
  epsilon: number | null;
  standing: string;
}

/** The elements of index.html that are more than an HTMLElement. */
interface Elements {
  "epsilon-slider": HTMLInputElement;
  "epsilon-box": HTMLInputElement;
  "delta-slider": HTMLInputElement;
  "delta-box": HTMLInputElement;
  search: HTMLButtonElement;
  token: HTMLInputElement;
  "token-dialog": HTMLDialogElement;
  "release-dialog": HTMLDialogElement;
  "release-name": HTMLInputElement;
  "release-recipient": HTMLInputElement;
  "release-best": HTMLButtonElement;
  "release-depends": HTMLInputElement;
  "release-cancel": HTMLButtonElement;
  "release-confirm": HTMLButtonElement;
  "release-weights": HTMLButtonElement;
  "weight-0": HTMLInputElement;
  "weight-1": HTMLInputElement;
  "weight-2": HTMLInputElement;
}
type ElementOf<Id extends string> = Id extends keyof Elements ? Elements[Id] : HTMLElement;

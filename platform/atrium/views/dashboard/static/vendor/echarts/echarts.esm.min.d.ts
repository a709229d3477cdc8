// The part of ECharts that the dashboard calls; its options and charts are not typed.
export function init(place: HTMLElement | null, theme: null, options: object): any;
export function connect(group: string): void;

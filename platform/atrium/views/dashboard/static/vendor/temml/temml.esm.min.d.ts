// The part of Temml that the dashboard calls.
declare const temml: { render(source: string, box: Element, options: object): void };
export default temml;

export function pageWithResults(): string;

export const together: readonly string[];
export const togetherOnVisits: readonly string[];

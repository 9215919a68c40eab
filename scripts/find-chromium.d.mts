export declare const noChromium: string;
export declare function chromiumOptions(): { executablePath: string; args: string[] } | undefined;

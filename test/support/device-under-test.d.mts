export declare const deviceUnderTest: Readonly<Record<string, string>>;

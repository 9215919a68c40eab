/** A process that holds memory of a device. */
export interface DeviceUser {
  readonly pid: number;
  /** The name of its program; not set if it cannot be read, as that of a process outside the container. */
  readonly name: string | undefined;
  /** The bytes that it holds; not set if the driver does not know, as on Windows. */
  readonly bytes: number | undefined;
  /** Whether it is this process. */
  readonly isOwn: boolean;
}

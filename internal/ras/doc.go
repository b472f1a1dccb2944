// Package ras queries the number of collectives that each rank of a communicator has launched. NCCL
// 2.28.7 and later answer in JSON through their RAS subsystem, which listens on a TCP port. Another
// process may use the port, so the package limits the length of responses, and uses only numbers
// and known names.
package ras

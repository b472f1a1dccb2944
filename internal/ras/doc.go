// Package ras queries NCCL for the number of collectives that each rank of a communicator has
// launched. NCCL 2.28.7 and later answer in JSON through their RAS subsystem: the first process on
// a machine listens on a TCP port, and its responses cover all ranks of a job. Another process may
// use the port, so the package limits the length of responses, and uses only numbers and known
// names.
package ras

// Package ras queries NCCL for the number of collectives that each rank of a communicator has
// launched. NCCL 2.28.7 and later answer such queries in JSON through their RAS subsystem,
// which runs a thread in each process. The first process on a machine listens on a TCP port,
// and its responses cover all ranks of a job.
//
// Requests are lines of text. Because some other process may be listening on the port, the
// package does not trust responses: it limits their length, and uses only numbers and known
// names.
package ras

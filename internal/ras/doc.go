// Package ras queries NCCL for the number of collectives that each rank of a communicator has
// launched. NCCL 2.28.7 and later answer such queries in JSON through their RAS subsystem. The
// first process on a machine listens on a TCP port, and its responses cover all ranks of a job.
//
// Some other process may be listening on the port. The package therefore limits the length of
// responses, and uses only numbers and known names.
package ras

// Package ras queries NCCL for the number of collectives that each rank of a communicator has
// launched. NCCL 2.28.7 and later answer such queries in JSON through the RAS subsystem, which runs
// a thread in each process. The first process on a machine listens on a TCP port, and its responses
// cover all ranks of a job.
//
// Requests are lines of text. Responses are not trusted, because some other process may be
// listening on the port: their length is limited, and only numbers and known names are used.
package ras

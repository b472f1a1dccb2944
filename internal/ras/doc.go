// Package ras queries NCCL for the number of collectives that each rank of a communicator has
// launched. NCCL 2.28.7 and later answer such queries as JSON through the RAS subsystem: a thread
// in each process, of which the first on a machine listens on a TCP port. An answer covers all
// ranks of a job.
//
// Requests are lines of text. Answers come from another process, so their length is limited and
// only numbers and known names are used.
package ras

// Package ras asks NCCL how many collectives each rank of a communicator has launched. NCCL 2.28.7
// and later answers such questions as JSON, by its RAS subsystem: a thread of each process, of
// which the first on a machine listens on a TCP port. One answer is about all ranks of a job.
//
// What is asked are lines of text, and what comes back is from another process: lengths are
// limited, and only numbers and known names are taken from it.
package ras

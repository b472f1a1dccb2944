// Package tuning chooses the path of a collective from a table of measured thresholds.
//
// NCCL uses its window kernels even at sizes where they are slower, and symmem's kernels are not
// the fastest at every size either. For an operation on a number of ranks and machines, a [Table]
// contains the sizes up to which each path is the fastest. The size of a call is the size of its
// larger buffer, for example the output of an all-gather.
//
// First, [Table.ChooseDirect] decides whether a call takes the direct path, and then [Table.Choose]
// chooses between the plain and the window path for symmetric buffers (in windows, which all ranks
// have registered). All choices depend only on facts that are the same on all ranks of a group, and
// the ranks compare [Table.Digest].
package tuning

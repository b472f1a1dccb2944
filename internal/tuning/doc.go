// Package tuning chooses the path of a collective from a table of measured thresholds. For an
// operation on a number of ranks and machines, a [Table] contains the sizes up to which each path
// is the fastest. The size of a call is the size of its larger buffer, for example the output of an
// all-gather.
//
// First, [Table.ChooseDirect] decides whether a call takes the direct path, and then [Table.Choose]
// chooses between the plain and the window path. Choices depend only on facts that are the same on
// all ranks, and the ranks compare [Table.Digest].
package tuning

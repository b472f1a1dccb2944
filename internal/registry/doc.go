// Package registry says which segments of a pool are registered with which groups.
//
// Tracking a segment and registering it are apart: a segment is tracked when it is mapped, which
// any allocation may cause, and registered when the ranks of a group next meet. The registry keeps
// a log of segments in the order in which they were tracked and, for each group, a cursor into it:
// the segments after the cursor are not registered with the group yet. The end of a scope with
// nothing new costs one comparison, and a scope with k new segments costs k steps, whatever was
// there before.
//
// A segment moves through these states:
//
//	          Track                 Registered (first group)
//	(none) ----------> tracked <------------------------> registered with n groups
//	                     |         Deregistered (last)       |
//	             Release |                           Release |
//	                     v                                   v
//	                    releasing  <----------------------  releasing, n windows remain
//	                     |            Deregistered (each)
//	             Untrack v
//	                    gone
//
// and a group through these:
//
//	(none) --Join--> joined --Close, once no window remains--> closed
//
// A releasing segment is pending for nobody and cannot be registered. A segment is registered at
// most once with a group. A closed group answers everything with [ErrGroupGone] and
// leaves nothing behind in the registry: groups are known by unique id, never by
// the pointer of a communicator, which a later communicator may inherit.
//
// The package performs no registration itself: the caller asks what is pending, lets the backend
// register, and reports what succeeded. After a failure half-way the cursor stands at the first
// segment that is still missing.
//
// Nothing in this package is safe for concurrent use; the owner of the pool guards its registry,
// and holds no lock while the backend registers: it copies the pending list first.
package registry

package cuda

import "symmem/internal/dl"

// userObject is a CUuserObject: a count of references with a destructor.
type userObject uintptr

// The only flags there are.
const (
	noDestructorSync = 1 // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
	moveReferences   = 1 // CU_GRAPH_USER_OBJECT_MOVE
)

// AtGraphEnd has a function called once, when nothing is left of a graph, which may be one that a
// capture writes to: not the graph, no clone of it, nothing that was instantiated of these, no
// graph that records a launch of that, and no launch under way. A capture that is lost ends its
// graph, too. The function runs on a thread of CUDA, some time after; it must not call into CUDA
// or NCCL, must not wait for what does, and must not panic. After an error it is not called.
//
// A driver that has no user objects (before CUDA 11.3) gives a *MissingError.
func (d *Driver) AtGraphEnd(graph Graph, end func()) error {
	for _, f := range []function{userObjectCreate, userObjectRelease, graphRetainUserObject} {
		if d.symbols[f] == 0 {
			return &MissingError{names[f], d.library.Path()}
		}
	}
	work := NewHostFuncOnce(end)
	cell := dl.NewCell(userObject(0))
	err := d.call(userObjectCreate, cell.Address(), uintptr(work), runHost(), 1, noDestructorSync)
	object := cell.Take()
	if err != nil {
		work.Release()
		return err
	}
	err = d.call(graphRetainUserObject, uintptr(graph), uintptr(object), 1, moveReferences)
	if err != nil {
		work.Release() // so that the destructor does nothing
		_ = d.call(userObjectRelease, uintptr(object), 1)
	}
	return err
}

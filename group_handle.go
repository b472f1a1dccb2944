package symmem

// Handle is the group's communicator as NCCL knows it, for calls that symmem does not offer: an
// ncclComm_t, and 0 where there is none, as on the host. It is the same each time until the group
// is closed or has failed, and 0 from then on.
//
// NCCL takes calls of a communicator from one thread at a time, and in the same order on all ranks:
// the caller sees to both, with symmem's calls on the group among them. It needs the GPU's primary
// context as its thread's current one. symmem gives such calls no deadline, compares none of them
// across ranks, and tells what they did wrong as a fault of the group. When the group fails or is
// closed symmem ends the communicator, whose handle must not be used then: see Ended.
func (g *Group) Handle() uintptr {
	if native, ok := g.comm.(interface{ Handle() uintptr }); ok {
		return native.Handle()
	}
	return 0
}

package doctor

import (
	"symmem/internal/ranklist"
	"symmem/internal/rendezvous"
)

// Launcher describes the rank of this process in the world (the set of all ranks), according to the
// environment variables of a launcher such as torchrun.
type Launcher struct {
	Source    string `json:"source"` // such as "torchrun"; without a launcher, "one process"
	Rank      int    `json:"rank"`
	Size      int    `json:"size"`              // number of ranks in the world
	LocalRank int    `json:"local_rank"`        // rank within this machine
	LocalSize int    `json:"local_size"`        // number of ranks on this machine
	Store     string `json:"store"`             // where ranks find each other, such as a TCP server
	Address   string `json:"address,omitempty"` // address of the store, or empty if unknown
	Error     string `json:"error,omitempty"`   // set instead of the fields above
	// Index is JOB_COMPLETION_INDEX, which Kubernetes sets in the pods of an indexed job.
	Index string `json:"job_completion_index,omitempty"`
}

// InspectLauncher describes the world that symmem.Open would join. It does not connect.
func InspectLauncher(lookup func(string) (string, bool)) Launcher {
	index, _ := lookup("JOB_COMPLETION_INDEX")
	world, err := rendezvous.Discover(lookup, rendezvous.Options{})
	if err != nil {
		return Launcher{Error: err.Error(), Index: index}
	}

	return Launcher{
		Source: string(world.Source), Rank: world.Rank, Size: world.Size,
		LocalRank: world.LocalRank, LocalSize: world.LocalSize,
		Store: world.Route.Kind.String(), Address: world.Route.Endpoint.Address,
		Index: index,
	}
}

func judgeLauncher(f *Facts, s *Section) {
	l := &f.Launcher
	hasNoLauncher := l.Source == string(rendezvous.SourceOneProcess)
	isInIndexedJob := l.Index != ""
	switch {
	case l.Error != "":
		s.add(Fail, "set all variables of a launcher or none; examples/README.md lists them",
			"the launcher's variables are invalid: %s", l.Error)
	case hasNoLauncher && isInIndexedJob:
		s.add(Warn, "set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT "+
			"and SYMMEM_TOKEN, as examples/kubernetes does", "JOB_COMPLETION_INDEX=%s, but no "+
			"variable sets the rank, so each pod is a separate world", l.Index)
	case hasNoLauncher:
		s.addOK("no launcher: this process is a world of one rank, and doctor starts ranks for the trial")
	default:
		l.judgeWorld(s)
		f.judgeRankCount(s)
	}
}

func (l *Launcher) judgeWorld(s *Section) {
	s.addOK("%s: rank %d of %d, local rank %d of %d", l.Source, l.Rank, l.Size, l.LocalRank,
		l.LocalSize)
	if l.Size <= 1 { // one rank needs no store
		return
	}

	where := ""
	if l.Address != "" {
		where = " at " + l.Address
	}

	s.addOK("store: %s%s", l.Store, where)
}

// judgeRankCount adds a problem if this machine has too many ranks for its GPUs.
func (f *Facts) judgeRankCount(s *Section) {
	ranks := f.Launcher.LocalSize
	gpus := len(f.GPUs)
	if gpus <= 1 { // other ranks may see other GPUs
		return
	}

	if ranks > gpus && f.usesNCCL() && !f.canShareGPUs() {
		s.add(Fail, "start fewer ranks on a machine, show them more GPUs (CUDA_VISIBLE_DEVICES), or "+
			"let them share GPUs ("+SharingVariable+"=1, with NCCL 2.30 or newer)",
			"%d ranks on this machine, but only %s", ranks, ranklist.Plural(gpus, "GPU"))
	}
}

package doctor

import (
	"slices"

	"symmem/internal/ranklist"
	"symmem/internal/rendezvous"
)

// A launcher starts the processes (ranks) of a world. For example, torchrun starts four ranks on
// each of two machines. It sets environment variables on each rank, for example RANK=5 and
// LOCAL_RANK=1: rank 5 of the world is rank 1 on its machine. The ranks find each other through a
// store, which has an address. Without a launcher, a process is a world of one rank.

// Launcher describes the world that a launcher's environment variables define.
type Launcher struct {
	Source    string `json:"source"` // name of the launcher, such as "torchrun", or "one process"
	Rank      int    `json:"rank"`
	Size      int    `json:"size"` // number of ranks
	LocalRank int    `json:"local_rank"`
	LocalSize int    `json:"local_size"`        // number of ranks on this machine
	Store     string `json:"store"`             // kind of the store
	Address   string `json:"address,omitempty"` // address of the store, or empty if unknown
	Error     string `json:"error,omitempty"`   // why the variables are invalid
	// Index is JOB_COMPLETION_INDEX, which Kubernetes sets in the pods of an indexed job.
	Index string `json:"job_completion_index,omitempty"`
}

// InspectLauncher describes the world that symmem.Open would join. It does not connect.
func InspectLauncher(lookup func(string) (string, bool)) Launcher {
	index, _ := lookup("JOB_COMPLETION_INDEX")
	w, err := rendezvous.Discover(lookup, rendezvous.Options{})
	if err != nil {
		return Launcher{Error: err.Error(), Index: index}
	}

	return Launcher{
		Source: string(w.Source), Rank: w.Rank, Size: w.Size, LocalRank: w.LocalRank,
		LocalSize: w.LocalSize, Store: w.Route.Kind.String(), Address: w.Route.Endpoint.Address,
		Index: index,
	}
}

// judgeLauncher adds findings about the launcher to s.
func judgeLauncher(f *Facts, s *Section) {
	l := &f.Launcher
	hasNoLauncher := l.Source == string(rendezvous.SourceOneProcess)
	isInPod := l.Index != ""
	switch {
	case l.Error != "":
		s.add(Fail, "set all variables of a launcher or none; examples/README.md lists them",
			"the launcher's variables are invalid: %s", l.Error)
	case hasNoLauncher && isInPod:
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

// judgeWorld adds findings about this rank and the store to s.
func (l *Launcher) judgeWorld(s *Section) {
	s.addOK("%s: rank %d of %d, local rank %d of %d", l.Source, l.Rank, l.Size, l.LocalRank,
		l.LocalSize)
	needsStore := l.Size > 1
	if !needsStore {
		return
	}

	where := ""
	if l.Address != "" {
		where = " at " + l.Address
	}

	s.addOK("store: %s%s", l.Store, where)
}

// judgeRankCount adds a finding to s if this machine has too many ranks for its GPUs.
func (f *Facts) judgeRankCount(s *Section) {
	ranks := f.Launcher.LocalSize
	gpus := len(f.GPUs)
	// If each rank sees only one GPU, these may be different GPUs.
	hasTooMany := gpus > 1 && ranks > gpus
	if hasTooMany && f.usesNCCL() && !f.sharesGPUs() {
		s.add(Fail, "start fewer ranks on a machine, show them more GPUs (CUDA_VISIBLE_DEVICES), or "+
			"let them share GPUs ("+SharingVariable+"=1, with NCCL 2.30 or newer)",
			"%d ranks on this machine, but only %s", ranks, ranklist.Plural(gpus, "GPU"))
	}
}

// sharesGPUs reports whether the user has allowed ranks to share a GPU, and they can.
func (f *Facts) sharesGPUs() bool {
	isAllowed := slices.ContainsFunc(f.Variables, func(v Variable) bool {
		return v.Name == SharingVariable && v.Value == "1"
	})
	return isAllowed && f.Sharing.Obstacle == ""
}

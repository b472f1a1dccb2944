package doctor

import (
	"slices"

	"symmem/internal/ranklist"
	"symmem/internal/rendezvous"
)

// Launcher describes the world that a launcher's environment variables define.
type Launcher struct {
	// Source is the name of the launcher, such as "torchrun", or "one process".
	Source    string `json:"source"`
	Rank      int    `json:"rank"`
	Size      int    `json:"size"`
	LocalRank int    `json:"local_rank"`
	LocalSize int    `json:"local_size"`
	// Store is the kind of store through which ranks find each other.
	Store string `json:"store"`
	// Address is the address of the store, or empty if unknown.
	Address string `json:"address,omitempty"`
	// Error states why the variables are invalid.
	Error string `json:"error,omitempty"`
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

func judgeLauncher(f *Facts, s *Section) {
	l := &f.Launcher
	isAlone := l.Source == string(rendezvous.SourceOneProcess)
	switch {
	case l.Error != "":
		s.add(Fail, "set all variables of a launcher or none; examples/README.md lists them",
			"the launcher's variables are invalid: %s", l.Error)
		return
	case isAlone && l.Index != "":
		s.add(Warn, "set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT "+
			"and SYMMEM_TOKEN, as examples/kubernetes does", "JOB_COMPLETION_INDEX=%s, but no "+
			"variable sets the rank, so each pod is a separate world", l.Index)
		return
	case isAlone:
		s.addOK("no launcher: this process is a world of one rank, and doctor starts ranks for the trial")
		return
	}

	s.addOK("%s: rank %d of %d, local rank %d of %d", l.Source, l.Rank, l.Size, l.LocalRank,
		l.LocalSize)
	if l.Size > 1 {
		where := ""
		if l.Address != "" {
			where = " at " + l.Address
		}

		s.addOK("store: %s%s", l.Store, where)
	}

	if n := len(f.GPUs); f.usesNCCL() && n > 1 && l.LocalSize > n && !f.sharesGPUs() {
		s.add(Fail, "start fewer ranks on a machine, show them more GPUs (CUDA_VISIBLE_DEVICES), or "+
			"let them share GPUs ("+SharingVariable+"=1, with NCCL 2.30 or newer)",
			"%d ranks on this machine, but only %s", l.LocalSize, ranklist.Plural(n, "GPU"))
	}
}

func (f *Facts) sharesGPUs() bool {
	return f.Sharing.Obstacle == "" && slices.ContainsFunc(f.Variables, func(v Variable) bool {
		return v.Name == SharingVariable && v.Value == "1"
	})
}

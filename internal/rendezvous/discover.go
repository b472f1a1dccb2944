package rendezvous

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
)

// Discover determines this process's rank and the route to the job's store. Options take precedence
// over environment variables. lookup is usually os.LookupEnv. The error is an EnvironmentError or
// describes an invalid option.
func Discover(lookup func(string) (string, bool), o Options) (World, error) {
	w, err := discoverRanks(lookup, o)
	if err != nil {
		return World{}, err
	}

	e := &environment{lookup: lookup, source: w.Source}
	if err := chooseRoute(e, o, &w); err != nil {
		return World{}, err
	}

	return w, nil
}

// environment looks up environment variables and records them for error messages.
type environment struct {
	lookup    func(string) (string, bool) // like os.LookupEnv
	source    Source                      // launcher that sets the variables, for error messages
	variables []Variable                  // looked up so far
}

// value returns the value of a variable. It does not distinguish an empty variable from an unset
// one, because scripts often set variables to "".
func (e *environment) value(name string) string {
	value, _ := e.lookup(name)
	e.variables = append(e.variables, Variable{name, value})
	return value
}

// isSet reports whether a variable is not empty. It does not record the variable.
func (e *environment) isSet(name string) bool {
	value, _ := e.lookup(name)
	return value != ""
}

// token is like value, but hides the value from error messages.
func (e *environment) token(name string) Token {
	value, _ := e.lookup(name)
	variable := Variable{Name: name}
	if value != "" {
		variable.Value = "(hidden)"
	}

	e.variables = append(e.variables, variable)
	return Token(value)
}

func (e *environment) errorf(format string, args ...any) error {
	return &EnvironmentError{
		Source:    e.source,
		Variables: e.variables,
		Reason:    fmt.Sprintf(format, args...),
	}
}

// number returns the value of a variable, which must be a non-negative decimal number.
func (e *environment) number(name string) (int, error) {
	value := e.value(name)
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return 0, e.errorf("%s is not a number", name)
	}

	return n, nil
}

// launcherVariables names the environment variables by which a launcher passes a rank to a process.
type launcherVariables struct {
	source                           Source
	rank, size, localRank, localSize string
	runIDs                           []string // The first one that is set applies.
	restart                          string   // "" if there is none
	advice                           string   // for errors about missing variables
}

// Discover tries the launchers in this order.
var launchers = []launcherVariables{
	{
		source: SourceTorchrun,
		rank:   "RANK", size: "WORLD_SIZE",
		localRank: "LOCAL_RANK", localSize: "LOCAL_WORLD_SIZE",
		runIDs: []string{"TORCHELASTIC_RUN_ID"}, restart: "TORCHELASTIC_RESTART_COUNT",
		advice: "RANK and WORLD_SIZE alone may count machines, as Kubeflow's PyTorchJob sets " +
			"them: start the processes by torchrun or symmem launch",
	},
	{
		source: SourceOpenMPI,
		rank:   "OMPI_COMM_WORLD_RANK", size: "OMPI_COMM_WORLD_SIZE",
		localRank: "OMPI_COMM_WORLD_LOCAL_RANK", localSize: "OMPI_COMM_WORLD_LOCAL_SIZE",
		runIDs: []string{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
		advice: "mpirun of Open MPI sets all four",
	},
	{
		source: SourceMPICH,
		rank:   "PMI_RANK", size: "PMI_SIZE",
		localRank: "MPI_LOCALRANKID", localSize: "MPI_LOCALNRANKS",
		advice: "mpiexec of MPICH and of Intel MPI sets all four",
	},
}

// discoverRanks returns this process's World without a route. Without options and a launcher, the
// World has a single rank.
func discoverRanks(lookup func(string) (string, bool), o Options) (World, error) {
	hasNumbers := o.Rank != 0 || o.Size != 0 || o.LocalRank != 0 || o.LocalSize != 0
	if hasNumbers {
		return worldFromOptions(o)
	}

	isSlurmTask := isInSlurmStep(lookup)
	for i := range launchers {
		launcher := &launchers[i]
		e := &environment{lookup: lookup, source: launcher.source}
		w, isFound, err := launcher.readWorld(e, isSlurmTask)
		if isFound {
			return w, err
		}
	}

	// Slurm comes last, because it may have started another launcher such as torchrun.
	if isSlurmTask {
		return worldFromSlurm(&environment{lookup: lookup, source: SourceSlurm})
	}

	return World{Size: 1, LocalSize: 1, Source: SourceOneProcess}, nil
}

// worldFromOptions returns the World that o describes. Without a local size, all ranks are on one
// machine.
func worldFromOptions(o Options) (World, error) {
	w := World{
		Rank: o.Rank, Size: o.Size, LocalRank: o.LocalRank, LocalSize: o.LocalSize,
		Source: SourceOptions,
	}
	if o.LocalSize == 0 {
		if o.LocalRank != 0 {
			return World{}, errors.New("finding this rank by options: the local " +
				"rank is set, but the local size is not set")
		}

		w.LocalRank = w.Rank
		w.LocalSize = w.Size
	}

	if problem := w.describeProblem(); problem != "" {
		return World{}, fmt.Errorf("finding this rank by options: %s", problem)
	}

	return w, nil
}

// readWorld returns the World that the launcher's variables describe. isFound is false if the
// launcher has not started this process.
func (l *launcherVariables) readWorld(
	e *environment, isSlurmTask bool,
) (w World, isFound bool, err error) {
	names := [...]string{l.rank, l.size, l.localRank, l.localSize}
	setCount := 0
	for _, name := range names {
		if e.isSet(name) {
			setCount++
		}
	}

	// Slurm may also set PMI_RANK and PMI_SIZE.
	hasLocalRank := e.isSet(l.localRank) || e.isSet(l.localSize)
	isSetBySlurm := isSlurmTask && l.source == SourceMPICH && !hasLocalRank
	if setCount == 0 || isSetBySlurm {
		return World{}, false, nil
	}

	if setCount < len(names) {
		for _, name := range names {
			e.value(name) // records the variable for the error
		}

		return World{}, true, e.errorf("only some of the variables are set; %s", l.advice)
	}

	w, err = l.parseWorld(e)
	return w, true, err
}

// parseWorld is readWorld if all four numbers are set.
func (l *launcherVariables) parseWorld(e *environment) (World, error) {
	w := World{Source: l.source}
	var rankErr, sizeErr, localRankErr, localSizeErr error
	w.Rank, rankErr = e.number(l.rank)
	w.Size, sizeErr = e.number(l.size)
	w.LocalRank, localRankErr = e.number(l.localRank)
	w.LocalSize, localSizeErr = e.number(l.localSize)
	err := cmp.Or(rankErr, sizeErr, localRankErr, localSizeErr) // the first error
	if err != nil {
		return World{}, err
	}

	if problem := w.describeProblem(); problem != "" {
		return World{}, e.errorf("%s", problem)
	}

	for _, name := range l.runIDs {
		if w.RunID == "" {
			w.RunID = e.value(name)
		}
	}

	if l.restart != "" && e.isSet(l.restart) {
		w.Restart, err = e.number(l.restart)
	}

	return w, err
}

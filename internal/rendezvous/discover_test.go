package rendezvous

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// newLookup returns a lookup function for variables such as "RANK=0 WORLD_SIZE=2".
func newLookup(text string) func(string) (string, bool) {
	all := map[string]string{}
	for word := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(word, "=")
		all[name] = value
	}

	return func(name string) (string, bool) {
		value, ok := all[name]
		return value, ok
	}
}

// Variables that launchers set for rank 1 of 2, and Slurm for an sbatch script.
const (
	envTorch = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=j " +
		"TORCHELASTIC_RESTART_COUNT=3 MASTER_ADDR=node7 MASTER_PORT=29500 "
	envOMPI = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 " +
		"OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=n1 "
	envMPICH = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_FD=9 "
	envSlurm = "SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NTASKS=9 " +
		"SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 "
	envBatch = "SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=9 "
)

// TestDiscover checks the World that Discover returns. The address of a Unix socket whose name is
// a hash is not compared.
func TestDiscover(t *testing.T) {
	newWorld := func(source Source, run string) World {
		return World{
			Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Source: source, RunID: run,
			Route: Route{Kind: RouteServe},
		}
	}
	oneRank := World{Size: 1, LocalSize: 1, Source: SourceOneProcess}
	torch := newWorld(SourceTorchrun, "j")
	torch.Restart = 3
	agentStore, launchStore, pmi := torch, torch, newWorld(SourceMPICH, "")
	agentStore.Route = Route{Kind: RouteJoin, Endpoint: Endpoint{Address: "node7:29500"}}
	launchStore.Route = Route{Kind: RouteJoin, Endpoint: Endpoint{Address: "unix:@s", Token: "t"}}
	pmi.Route = Route{Kind: RoutePMI, FD: 9}
	remote := World{
		Rank: 5, Size: 8, LocalRank: 1, LocalSize: 4, Source: SourceSlurm, RunID: "77.2",
		Route: Route{Kind: RouteServe, Endpoint: Endpoint{Address: "[::1]:1", Token: "t"}},
	}
	rows := []struct {
		name, env string
		options   Options
		want      World
	}{
		{"without variables there is one rank", "", Options{}, oneRank},
		{"an sbatch script is not a rank", envBatch, Options{}, oneRank},
		{"an salloc shell is not a rank", envBatch + "SLURM_STEP_ID=4294967290", Options{}, oneRank},
		{"torchrun takes precedence over Open MPI", envTorch + envOMPI, Options{}, torch},
		{
			"torchrun's agent serves a store without a token",
			envTorch + "TORCHELASTIC_USE_AGENT_STORE=True SYMMEM_TOKEN=t",
			Options{},
			agentStore,
		},
		{
			"the store of symmem launch takes precedence over the store of torchrun's agent",
			envTorch + "TORCHELASTIC_USE_AGENT_STORE=True SYMMEM_STORE=unix:@s SYMMEM_TOKEN=t",
			Options{},
			launchStore,
		},
		{
			"Open MPI takes precedence over Slurm",
			envOMPI + envSlurm,
			Options{},
			newWorld(SourceOpenMPI, "n1"),
		},
		{"MPICH uses PMI", envMPICH, Options{}, pmi},
		{
			"PMI variables set by srun mean Slurm",
			"PMI_RANK=1 PMI_SIZE=2 PMI_FD=9 " + envSlurm,
			Options{},
			newWorld(SourceSlurm, "77.0"),
		},
		{
			"Slurm on several machines needs an address and a token",
			"SLURM_JOB_ID=77 SLURM_STEP_ID=2 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NTASKS=8 " +
				"SLURM_STEP_TASKS_PER_NODE=3,1,4(x2) SLURM_NODEID=2 " +
				"MASTER_ADDR=::1 MASTER_PORT=1 SYMMEM_TOKEN=t",
			Options{},
			remote,
		},
		{"options take precedence", envTorch, Options{Rank: 1, Size: 2}, newWorld(SourceOptions, "")},
		{
			"one rank needs no store", envTorch,
			Options{Size: 1},
			World{Size: 1, LocalSize: 1, Source: SourceOptions},
		},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) { checkDiscovered(t, r.env, r.options, r.want) })
	}
}

func checkDiscovered(t *testing.T, env string, options Options, want World) {
	t.Helper()
	got, err := Discover(newLookup(env), options)
	if err != nil {
		t.Fatal(err)
	}

	wantsHashedAddress := want.Route.Kind == RouteServe && want.Route.Endpoint.Address == ""
	if wantsHashedAddress {
		clearSocketAddress(t, &got)
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

// clearSocketAddress checks that the address is a Unix socket of symmem, and removes it.
func clearSocketAddress(t *testing.T, w *World) {
	t.Helper()
	if !strings.HasPrefix(w.Route.Endpoint.Address, "unix:@symmem-") {
		t.Fatalf("got route %v, want a socket of symmem", w.Route)
	}

	w.Route.Endpoint = Endpoint{}
}

// TestInvalidEnvironments changes variables of a launcher, so that Discover must return an
// EnvironmentError that contains want.
func TestInvalidEnvironments(t *testing.T) {
	rows := []struct{ name, env, want string }{
		{
			"a RANK that numbers machines, as set by Kubeflow", "RANK=0 WORLD_SIZE=4",
			`by torchrun: only some of the variables are set; RANK and WORLD_SIZE alone may count ` +
				`machines, as Kubeflow's PyTorchJob sets them: start the processes by torchrun or ` +
				`symmem launch (RANK="0", WORLD_SIZE="4", LOCAL_RANK is not set, ` +
				`LOCAL_WORLD_SIZE is not set)`,
		},
		{"an empty variable", strings.Replace(envTorch, "RANK=1", "RANK=", 1), "RANK is not set"},
		{
			"a rank that is not a number", strings.Replace(envTorch, "RANK=1", "RANK=x", 1),
			`RANK is not a number (RANK="x")`,
		},
		{
			"a rank out of range", strings.Replace(envTorch, "RANK=1", "RANK=2", 1),
			"rank 2 is not below the size 2",
		},
		{"a negative rank", strings.Replace(envTorch, "RANK=1", "RANK=-1", 1), "not a number"},
		{
			"a size of zero", "RANK=0 WORLD_SIZE=0 LOCAL_RANK=0 LOCAL_WORLD_SIZE=0",
			"the size 0 is not between",
		},
		{
			"more local ranks than ranks", strings.Replace(envTorch, "L_WORLD_SIZE=2", "L_WORLD_SIZE=3", 1),
			"the local size 3 is not between 1 and the size 2",
		},
		{
			"a restart count that is not a number",
			strings.Replace(envTorch, "COUNT=3", "COUNT=x", 1), "TORCHELASTIC_RESTART_COUNT is not",
		},
		{"only Open MPI's rank", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is not set"},
		{
			"Open MPI without a job", strings.Replace(envOMPI, "PMIX_NAMESPACE", "X", 1),
			"the launcher did not set a name for the job",
		},
		{"only MPICH's rank and size", "PMI_RANK=0 PMI_SIZE=2", "MPI_LOCALRANKID is not set"},
		{
			"MPICH without its descriptor", strings.Replace(envMPICH, "PMI_FD", "X", 1),
			"PMI_FD is not a number",
		},
		{
			"a Slurm step without a rank", strings.Replace(envSlurm, "PROCID", "X", 1),
			"SLURM_PROCID is not a number",
		},
		{
			"a Slurm step without a node ID", strings.Replace(envSlurm, "NODES=1", "NODES=2", 1),
			"SLURM_NODEID is not a number",
		},
		{"a malformed Slurm task list", strings.Replace(envSlurm, "NUM_NODES=1",
			"TASKS_PER_NODE=2(x SLURM_NODEID=0", 1), "does not contain the tasks of node 0"},
		{"the agent's store without a port", strings.Replace(envTorch, "MASTER_PORT", "X", 1) +
			"TORCHELASTIC_USE_AGENT_STORE=True", "MASTER_PORT is not set"},
		{"an invalid port", strings.Replace(envTorch, "29500", "0", 1) +
			"TORCHELASTIC_USE_AGENT_STORE=True", "MASTER_PORT is not a port number"},
		{
			"a job on several machines without a token",
			strings.ReplaceAll(envTorch, "LOCAL_WORLD_SIZE=2", "LOCAL_WORLD_SIZE=1") + "LOCAL_RANK=0",
			"set SYMMEM_TOKEN to the same random text on all",
		},
		{"an invalid SYMMEM_STORE", envTorch + "SYMMEM_STORE=here", "neither host:port"},
		{
			"a job without a name", "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2",
			"have no common name",
		},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			w, err := Discover(newLookup(r.env), Options{})
			var environmentErr *EnvironmentError
			if !errors.As(err, &environmentErr) {
				t.Fatalf("Discover = %+v, %v, want an EnvironmentError", w, err)
			}

			if !strings.Contains(err.Error(), r.want) {
				t.Fatalf("Discover = %v\nwant an error that contains %s", err, r.want)
			}
		})
	}
}

func TestInvalidOptions(t *testing.T) {
	rows := map[string]Options{
		"a rank without a size":                {Rank: 1},
		"a rank out of range":                  {Rank: 2, Size: 2},
		"a negative size":                      {Size: -1},
		"a local rank without local size":      {Rank: 1, Size: 2, LocalRank: 1},
		"a TCP address without a token":        {Size: 2, Address: "localhost:1"},
		"an invalid address":                   {Size: 2, Address: "localhost"},
		"neither an address nor a common name": {Size: 2},
	}
	for name, o := range rows {
		t.Run(name, func(t *testing.T) {
			if w, err := Discover(newLookup(""), o); err == nil {
				t.Fatalf("Discover = %+v, want an error", w)
			}
		})
	}
}

func TestErrorsDoNotContainTokens(t *testing.T) {
	_, err := Discover(newLookup(envTorch+"SYMMEM_STORE=here SYMMEM_TOKEN=secret"), Options{})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Fatalf("got %v, want an error without the token", err)
	}

	if !strings.Contains(err.Error(), `SYMMEM_TOKEN="(hidden)"`) {
		t.Fatalf("got %v, want an error that lists SYMMEM_TOKEN", err)
	}
}

// TestPrivateSocketNamesAreUnique checks that jobs which differ in a launcher's names have
// different sockets.
func TestPrivateSocketNamesAreUnique(t *testing.T) {
	environments := map[string]string{} // by address
	for _, env := range []string{
		envTorch, strings.Replace(envTorch, "COUNT=3", "COUNT=4", 1),
		strings.Replace(envTorch, "RUN_ID=j", "RUN_ID=k", 1),
		strings.Replace(envTorch, "29500", "29501", 1), envOMPI, envSlurm,
		strings.Replace(envSlurm, "STEP_ID=0", "STEP_ID=1", 1),
	} {
		w, err := Discover(newLookup(env), Options{})
		if err != nil {
			t.Fatal(err)
		}

		address := w.Route.Endpoint.Address
		if other, isUsed := environments[address]; isUsed {
			t.Fatalf("%s and %s share %s", env, other, address)
		}

		const maxNameBytes = 107 // limit of the kernel
		if name := strings.TrimPrefix(address, "unix:"); len(name) > maxNameBytes {
			t.Fatalf("the socket name has %d bytes, want at most %d", len(name), maxNameBytes)
		}

		environments[address] = env
	}
}

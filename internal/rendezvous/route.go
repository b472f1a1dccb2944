package rendezvous

import (
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

const (
	// EnvStore is the environment variable for the address of a running store.
	EnvStore = "SYMMEM_STORE"
	// EnvToken is the environment variable for the store's token.
	EnvToken = "SYMMEM_TOKEN"
)

// chooseRoute sets w.Route by the first rule that applies:
//
//  1. A job with one rank has a store inside the process.
//  2. Options.Address: rank 0 serves a store at this address.
//  3. SYMMEM_STORE: a store is already running at this address. If symmem launch serves the store,
//     w.Source becomes SourceLaunch.
//  4. TORCHELASTIC_USE_AGENT_STORE: torchrun serves a store at MASTER_ADDR and MASTER_PORT.
//  5. All ranks are on one machine: rank 0 serves a store on a Unix socket. If MPICH started the
//     ranks, they find the socket by PMI.
//  6. Otherwise, rank 0 serves a store on TCP at MASTER_ADDR and MASTER_PORT.
//
// A store that rank 0 serves on TCP requires a token, because other jobs can reach it. All ranks
// must have the same variables and options, so that they choose the same store.
func chooseRoute(e *environment, o Options, w *World) error {
	if w.Size == 1 {
		return nil // The zero Route is RouteLocal.
	}

	token := o.Token
	if token == "" {
		token = e.token(EnvToken)
	}

	if o.Address != "" {
		return routeToAddress(o.Address, token, w)
	}

	if address := e.value(EnvStore); address != "" {
		return routeToRunningStore(e, address, token, w)
	}

	hasTorchrunStore := w.Source == SourceTorchrun &&
		e.value("TORCHELASTIC_USE_AGENT_STORE") == "True"
	if hasTorchrunStore {
		return routeToTorchrunStore(e, w)
	}

	isOneMachine := w.LocalSize == w.Size
	if isOneMachine {
		return routeOnOneMachine(e, token, w)
	}

	return routeAcrossMachines(e, token, w)
}

// routeToAddress sets the route for the address in Options.
func routeToAddress(address string, token Token, w *World) error {
	network, _, err := splitAddress(address)
	if err == nil && network == "tcp" && token == "" {
		err = fmt.Errorf("a store at %s requires a token: pass a token or set %s",
			address, EnvToken)
	}

	if err != nil {
		return fmt.Errorf("finding the store by options: %w", err)
	}

	w.Route = Route{Kind: RouteServe, Endpoint: Endpoint{Address: address, Token: token}}
	return nil
}

// routeToRunningStore sets the route for the address in SYMMEM_STORE.
func routeToRunningStore(e *environment, address string, token Token, w *World) error {
	if _, _, err := splitAddress(address); err != nil {
		return e.errorf("%v", err)
	}

	w.Route = Route{Kind: RouteJoin, Endpoint: Endpoint{Address: address, Token: token}}
	isFromLaunch := strings.HasPrefix(address, LaunchStore)
	if isFromLaunch {
		w.Source = SourceLaunch
	}

	return nil
}

func routeToTorchrunStore(e *environment, w *World) error {
	address, err := masterAddress(e)
	if err != nil {
		return err
	}

	const noToken Token = "" // PyTorch's stores do not support tokens.
	w.Route = Route{Kind: RouteJoin, Endpoint: Endpoint{Address: address, Token: noToken}}
	return nil
}

// routeOnOneMachine sets the route for ranks of one machine. The name of their Unix socket depends
// on variables that identify the job. MPICH sets none, so its ranks use PMI.
func routeOnOneMachine(e *environment, token Token, w *World) error {
	if w.Source == SourceMPICH {
		fd, err := e.number("PMI_FD")
		if err != nil {
			return err
		}

		w.Route = Route{Kind: RoutePMI, FD: fd}
		return nil
	}

	jobID, err := identifyJob(e, w)
	if err != nil {
		return err
	}

	address := jobSocketAddress(w.Source, os.Geteuid(), jobID)
	w.Route = Route{Kind: RouteServe, Endpoint: Endpoint{Address: address, Token: token}}
	return nil
}

// identifyJob returns values that distinguish this run of the job from other jobs on the machine.
func identifyJob(e *environment, w *World) ([]string, error) {
	jobID := []string{w.RunID, strconv.Itoa(w.Restart)}
	usesMasterAddress := w.Source == SourceTorchrun || w.Source == SourceOptions
	if usesMasterAddress {
		port := e.value("MASTER_PORT")
		hasRunID := w.RunID != "" && w.RunID != "none" // "none" is torchrun's default.
		if port == "" && !hasRunID {
			return nil, e.errorf("the ranks of this job have no common name for their store: "+
				"set MASTER_PORT, a run id, or %s", EnvStore)
		}

		return append(jobID, e.value("MASTER_ADDR"), port), nil
	}

	if w.RunID == "" {
		return nil, e.errorf("the launcher did not set a name for the job: set %s", EnvStore)
	}

	return jobID, nil
}

// jobSocketAddress returns the address of a user's Unix socket for a job. It contains a hash of
// jobID, because the name of a socket has at most 107 bytes.
func jobSocketAddress(source Source, uid int, jobID []string) string {
	jobName := string(source) + "\x00" + strings.Join(jobID, "\x00")
	return fmt.Sprintf("%s@symmem-%d-%x", unixScheme, uid, sha256.Sum256([]byte(jobName)))
}

func routeAcrossMachines(e *environment, token Token, w *World) error {
	address, err := masterAddress(e)
	if err != nil {
		return err
	}

	if token == "" {
		return e.errorf("ranks on several machines need a token for their store: set %s to "+
			"the same random text on all, for example the output of: openssl rand -hex 16", EnvToken)
	}

	w.Route = Route{Kind: RouteServe, Endpoint: Endpoint{Address: address, Token: token}}
	return nil
}

// masterAddress returns "MASTER_ADDR:MASTER_PORT" with the values of these variables.
func masterAddress(e *environment) (string, error) {
	host := e.value("MASTER_ADDR")
	port := e.value("MASTER_PORT")
	if host == "" || port == "" {
		return "", e.errorf("the store needs MASTER_ADDR and MASTER_PORT, or %s", EnvStore)
	}

	portNumber, err := strconv.ParseUint(port, 10, 16)
	if err != nil || portNumber == 0 {
		return "", e.errorf("MASTER_PORT is not a port number")
	}

	return net.JoinHostPort(host, port), nil
}

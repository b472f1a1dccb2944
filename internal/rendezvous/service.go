package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
)

// service is a Server that the Members of this process share if their stores have the same address.
// The last Member to leave closes it.
type service struct {
	endpoint Endpoint
	server   *Server

	// Guarded by services.mu:
	memberCount int        // number of Members that have not left
	leaveKeys   [][]string // for each world, keys that the other ranks set when they leave
}

var services = struct {
	mu        sync.Mutex
	byAddress map[string]*service // by Endpoint.Address
}{byAddress: map[string]*service{}}

// joinService adds a Member to the service at an endpoint, and opens the service if necessary. It
// retries while another process uses the address, such as rank 0 of an earlier run. It returns an
// error if that process belongs to another user, or serves a store in which this rank is taken.
func joinService(ctx context.Context, endpoint Endpoint, w *World) (*service, error) {
	j := &serviceJoiner{endpoint: endpoint, world: w}
	return callWithRetries(ctx, j.tryJoin, isAddressInUse)
}

func isAddressInUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }

type serviceJoiner struct {
	endpoint       Endpoint
	world          *World
	hasWarned      bool
	nextClaimCheck time.Time
}

// claimCheckInterval is long, because checkRankNotTaken may take seconds.
const claimCheckInterval = claimTimeout

func (j *serviceJoiner) tryJoin(ctx context.Context) (*service, error) {
	s, err := findOrOpenService(j.endpoint)
	if err == nil || !isAddressInUse(err) {
		return s, err
	}

	advice, ownerErr := checkAddressOwner(ctx, j.endpoint, uint32(os.Geteuid()))
	if ownerErr != nil {
		return nil, ownerErr
	}

	isCheckDue := time.Now().After(j.nextClaimCheck)
	if isCheckDue {
		claimErr := checkRankNotTaken(ctx, j.endpoint, j.world)
		if claimErr != nil {
			return nil, claimErr
		}

		j.nextClaimCheck = time.Now().Add(claimCheckInterval)
	}

	if !j.hasWarned {
		j.hasWarned = true
		slog.Warn("symmem: the address of the store is in use; this rank tries again until its "+
			"timeout: "+advice, "address", j.endpoint.Address, "error", err)
	}

	return nil, fmt.Errorf("%w; %s", err, advice)
}

// findOrOpenService is joinService without retries.
func findOrOpenService(endpoint Endpoint) (*service, error) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s := services.byAddress[endpoint.Address]
	if s != nil && s.endpoint.Token != endpoint.Token {
		return nil, fmt.Errorf("this process already serves a store at %s, with another token",
			endpoint.Address)
	}

	if s == nil {
		server, err := Listen(listenAddress(endpoint.Address), endpoint.Token)
		if err != nil {
			return nil, err
		}

		s = &service{endpoint: endpoint, server: server}
		services.byAddress[endpoint.Address] = s
	}

	s.memberCount++
	return s, nil
}

// addWorld adds the leaveKeys of a world that all ranks have joined.
func (s *service) addWorld(leaveKeys []string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s.leaveKeys = append(s.leaveKeys, leaveKeys)
}

// removeMember removes a Member. It returns s.leaveKeys if it was the last.
func (s *service) removeMember() (isLast bool, leaveKeys [][]string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s.memberCount--
	if s.memberCount > 0 {
		return false, nil
	}

	delete(services.byAddress, s.endpoint.Address)
	return true, s.leaveKeys
}

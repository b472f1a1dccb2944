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

// service is a server and its refcount. If a process calls Connect several times for the same
// address, the Members share a service, and the last one to leave closes it.
type service struct {
	endpoint Endpoint
	server   *Server

	// Guarded by services.mu:
	memberCount int // number of Members that have not left
	// leaveKeys has a list for each call of Connect, with the keys that the other ranks set when they
	// leave.
	leaveKeys [][]string
}

var services = struct {
	mu        sync.Mutex
	byAddress map[string]*service // by Endpoint.Address
}{byAddress: map[string]*service{}}

// joinService adds a Member to the service at an endpoint, and opens the service if necessary.
//
// While another process uses the address, such as rank 0 of an earlier run, joinService retries. It
// returns an error if that process belongs to another user, or serves a store in which this rank is
// already connected.
func joinService(ctx context.Context, endpoint Endpoint, w *World) (*service, error) {
	hasWarned := false
	var nextClaimCheck time.Time
	pause := firstBackoff
	for {
		s, err := findOrOpenService(endpoint)
		isAddressInUse := errors.Is(err, syscall.EADDRINUSE)
		if !isAddressInUse {
			return s, err
		}

		advice, ownerErr := checkAddressOwner(ctx, endpoint, uint32(os.Geteuid()))
		if ownerErr != nil {
			return nil, ownerErr
		}

		// A check may take seconds, which is too long for each attempt.
		isCheckDue := time.Now().After(nextClaimCheck)
		if isCheckDue {
			claimErr := checkRankNotTaken(ctx, endpoint, w)
			if claimErr != nil {
				return nil, claimErr
			}

			nextClaimCheck = time.Now().Add(claimTimeout)
		}

		if !hasWarned {
			hasWarned = true
			slog.Warn("symmem: the address of the store is in use; this rank tries again until its "+
				"timeout: "+advice, "address", endpoint.Address, "error", err)
		}

		hasPaused := sleepWithJitter(ctx, pause)
		if !hasPaused {
			return nil, fmt.Errorf("%w: %w; %s", context.Cause(ctx), err, advice)
		}

		pause = min(2*pause, maxBackoff)
	}
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

// addWorld adds a world that all ranks have joined, the result of one call of Connect. The other
// ranks set leaveKeys when they leave.
func (s *service) addWorld(leaveKeys []string) {
	services.mu.Lock()
	defer services.mu.Unlock()
	s.leaveKeys = append(s.leaveKeys, leaveKeys)
}

// removeMember returns s.leaveKeys if no Members remain. A later Member then opens a new service.
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

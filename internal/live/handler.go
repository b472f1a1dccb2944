package live

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// A rank serves its state in up to three ways. Suppose that the ranks 0 and 1 run on one machine:
//
//   - Each of them serves its own state on a Unix socket, for processes of the same user and root.
//   - Unless Config.Address is SocketsOnly, rank 0, the lowest, also serves the states of both
//     ranks over TCP. Any client can read /metrics. Other paths need the token of the job, and are
//     served only at an address that other machines cannot reach.
//   - The program can serve Handler in its own HTTP server, and must restrict access to it.

// Paths of URLs. The path / is the page, which loads its data from dataPath.
const (
	jsonPath    = "/debug/symmem"
	alivePath   = "/debug/symmem/alive" // other ranks request it; see holdConnection
	metricsPath = "/metrics"
	statusPath  = "/status"
	dataPath    = "/data.bin"
)

// machineReader returns the states of ranks on this machine. Each contains the latest events of
// each pool, at most eventLimit.
type machineReader func(ctx context.Context, eventLimit int) Machine

// noEvents is an argument of a machineReader.
const noEvents = 0

// maxEvents is the highest eventLimit that a request can have. It limits the size of the response.
const maxEvents = 8192

// newMux returns a handler for all paths except alivePath. It calls read to get the states.
func newMux(read machineReader) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		writeEmptyPage(w)
	})
	mux.HandleFunc("GET "+dataPath, func(w http.ResponseWriter, r *http.Request) {
		writeData(w, r, read(r.Context(), pageEvents))
	})
	mux.HandleFunc("GET "+statusPath, func(w http.ResponseWriter, r *http.Request) {
		writeStatus(w, read(r.Context(), noEvents))
	})
	mux.HandleFunc("GET "+jsonPath, func(w http.ResponseWriter, r *http.Request) {
		eventLimit, err := parseEventLimit(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}

		writeJSON(w, read(r.Context(), eventLimit))
	})
	mux.HandleFunc("GET "+metricsPath, func(w http.ResponseWriter, r *http.Request) {
		writeMetrics(w, r, read(r.Context(), noEvents))
	})
	return mux
}

// parseEventLimit returns the number in the URL's parameter "events", or noEvents if there is none.
func parseEventLimit(r *http.Request) (int, error) {
	text := r.URL.Query().Get("events")
	if text == "" {
		return noEvents, nil
	}

	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxEvents {
		return 0, fmt.Errorf("events must be a number from 0 to %d", maxEvents)
	}

	return n, nil
}

// Handler returns a handler that shows all ranks of the job on this machine. It does not check the
// token or the Host of requests, so the caller must restrict access.
func (s *Server) Handler() http.Handler { return protect(newMux(s.readMachine)) }

// NewHandler returns a handler that shows the rank that snapshot describes. It needs no Server. It
// does not check the token or the Host of requests, so the caller must restrict access.
func NewHandler(snapshot func(eventLimit int) Snapshot) http.Handler {
	read := func(_ context.Context, eventLimit int) Machine {
		return newMachine(snapshot(eventLimit))
	}
	return protect(newMux(read))
}

// localHandler returns the handler for the Unix socket. It shows only this rank.
func (s *Server) localHandler() http.Handler {
	read := func(_ context.Context, eventLimit int) Machine {
		return newMachine(s.ownSnapshot(eventLimit))
	}
	mux := newMux(read)
	mux.HandleFunc("GET "+alivePath, s.holdConnection)
	return protect(mux)
}

// remoteHandler returns the handler for TCP. It shows all ranks of the job on this machine. If
// isLoopback is set, other machines cannot reach the address. Otherwise, only metricsPath is
// served.
func (s *Server) remoteHandler(isLoopback bool) http.Handler {
	mux := newMux(s.readMachine)
	configuredHost, _, _ := net.SplitHostPort(s.cfg.Address) // "" after an error
	return protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isMetrics := r.URL.Path == metricsPath
		switch {
		case !isAllowedHost(r.Host, configuredHost):
			http.Error(w, "the URL's host is not a name of this machine: use its IP address",
				http.StatusMisdirectedRequest)
			return
		case !isMetrics && !isLoopback:
			http.Error(w, "this address serves only "+metricsPath+": for other pages, set SYMMEM_HTTP to "+
				"an address of localhost, or use symmem status", http.StatusForbidden)
			return
		}

		if isMetrics || s.authorizeOrRespond(w, r) {
			mux.ServeHTTP(w, r)
		}
	}))
}

// protect adds headers to the responses of a handler: browsers must not store responses, or show
// them inside other pages. It also makes reads of a request's body fail.
func protect(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const maxBodyBytes = 0
		r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("Content-Security-Policy",
			"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("X-Content-Type-Options", "nosniff")
		h.ServeHTTP(w, r)
	})
}

// isAllowedHost reports whether the Host of a request is an IP address or a name of this machine.
// Other names could be a case of DNS rebinding: the owner of a domain makes it resolve to this
// machine, so that a web page of the domain can read responses.
func isAllowedHost(host, configuredHost string) bool {
	name, _, err := net.SplitHostPort(host)
	hasPort := err == nil
	if hasPort {
		host = name
	}

	// Without a port, an IPv6 address still has its brackets.
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if net.ParseIP(host) != nil {
		return true
	}

	ownName, _ := os.Hostname() // "" after an error
	for _, name := range []string{"localhost", ownName, configuredHost} {
		if name != "" && strings.EqualFold(host, name) {
			return true
		}
	}

	return false
}

// authorizeOrRespond reports whether a request contains the token of the job. If it returns false,
// it has written the response.
func (s *Server) authorizeOrRespond(w http.ResponseWriter, r *http.Request) bool {
	if s.hasToken(r) {
		return true
	}

	isTokenInURL := s.isToken(r.URL.Query().Get("token"))
	if isTokenInURL && r.Method == http.MethodGet {
		s.moveTokenToCookie(w, r)
		return false
	}

	w.Header().Set("WWW-Authenticate", "Bearer")
	http.Error(w, "the token of the job is missing or wrong: open the URL that symmem status prints",
		http.StatusUnauthorized)
	return false
}

// cookieName is the cookie that contains the token of the job.
const cookieName = "symmem-token"

// hasToken reports whether a request contains the token as a bearer token or in a cookie.
func (s *Server) hasToken(r *http.Request) bool {
	token, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if isBearer && s.isToken(token) {
		return true
	}

	cookie, err := r.Cookie(cookieName) // an error means that there is no cookie
	return err == nil && s.isToken(cookie.Value)
}

// moveTokenToCookie stores the token in a cookie, and redirects to the URL without the token.
func (s *Server) moveTokenToCookie(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, &http.Cookie{
		Name:     cookieName,
		Value:    s.token,
		Path:     "/",
		HttpOnly: true,
		SameSite: http.SameSiteStrictMode,
	})
	http.Redirect(w, r, r.URL.EscapedPath(), http.StatusSeeOther)
}

// isToken compares text with the token in constant time, so that the time reveals nothing.
func (s *Server) isToken(text string) bool {
	return subtle.ConstantTimeCompare([]byte(text), []byte(s.token)) == 1
}

// holdConnection keeps a connection from another rank open until the other rank closes it. If this
// rank exits, the connection ends, and the other rank notices.
func (s *Server) holdConnection(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	noDeadline := time.Time{}
	if err := control.SetReadDeadline(noDeadline); err != nil {
		return
	}

	if err := control.SetWriteDeadline(noDeadline); err != nil {
		return
	}

	w.WriteHeader(http.StatusOK)
	if err := control.Flush(); err != nil {
		return
	}

	<-r.Context().Done()
}

// writeJSON writes m as the response.
func writeJSON(w http.ResponseWriter, m Machine) {
	text, err := json.Marshal(m)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}

	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // fails if the client has disconnected
}

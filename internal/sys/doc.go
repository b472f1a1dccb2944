// Package sys wraps system calls. No other package of symmem imports golang.org/x/sys. The caller
// owns a returned *os.File or *Mapping and must close it exactly once. Errors wrap errno values.
package sys

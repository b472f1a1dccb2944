// Package program contains code of random programs. The command "symmem verify" and package chaos
// use it.
package program

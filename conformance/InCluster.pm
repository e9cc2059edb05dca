# Loaded before a file of memcached's suite: a server that it starts is one of a cluster, and the file waits until
# that reaches the owners of all keys. READY is the command that waits, with the address behind it.
package InCluster;
use strict;
use MemcachedTest;

my $start = \&MemcachedTest::new_memcached;
no warnings 'redefine';
*MemcachedTest::new_memcached = sub {
    my $server = $start->(@_);
    my $at = $server && ($server->{domainsocket} || $server->{port});
    # Where the tool is not understood (TLS, a binary port) all that can be done is to wait.
    my $is_ready = $at && !$ENV{SSL_TEST} && system("$ENV{READY} $at > /dev/null 2>&1") == 0;
    select(undef, undef, undef, 1) unless $is_ready;
    return $server;
};
1;

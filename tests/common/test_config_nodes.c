/* SPDX-License-Identifier: MIT
 *
 * test_config_nodes.c - what the configuration says of other nodes: their addresses, the cluster's key, and mistakes in both.
 */
#include <sys/stat.h>
#include <sys/xattr.h>

#include "daemon/common/cluster.h"
#include "tests/common/config_bed.h"

static const char *key_file(const char *bytes, size_t n, unsigned mode)
{
    static char key[64];

    (void)snprintf(key, sizeof(key), "/tmp/fccd-key.XXXXXX");
    int fd = mkstemp(key);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n && fchmod(fd, mode) == 0);
    (void)close(fd);
    return key;
}

/* With the key file's path for %s. */
static void wrong_with_key(const char *format, const char *key, const char *says)
{
    char text[512];

    (void)snprintf(text, sizeof(text), format, key);
    wrong(text, NULL, says);
}

static const char secret[64] = "sixty-four bytes that are as secret as a test's bytes can be....";

static void nodes(void **state)
{
    const char *key = key_file(secret, sizeof(secret), 0600);
    struct cluster_key read_key;
    struct config c;
    struct error e;
    node_address *list;
    char text[512];
    size_t n;

    (void)state;
    (void)snprintf(text, sizeof(text), "NODE_LISTEN=[::1]:7000\nCLUSTER_KEY=%s\nNODES= a:1 ,b.c-d_e:2,[::1]:7000,a:1\n", key);
    assert_int_equal(load(text, NULL, &c, &e), 0);
    assert_string_equal(c.node_address, "[::1]:7000"); /* what it stands for */
    assert_int_equal(cluster_nodes_read(&c, &list, &n, &e), 0);
    assert_int_equal(n, 2); /* neither itself nor the same again */
    assert_string_equal(list[0], "a:1");
    assert_string_equal(list[1], "b.c-d_e:2");
    free(list);
    assert_int_equal(cluster_key_read(&c, &read_key, &e), 0);
    assert_int_equal(read_key.length, sizeof(secret));
    assert_memory_equal(read_key.bytes, secret, sizeof(secret));

    (void)snprintf(text, sizeof(text), "NODE_LISTEN=0.0.0.0:7000\nNODE_ADDRESS=me:7000\nCLUSTER_KEY=%s\n", key);
    assert_int_equal(load(text, NULL, &c, &e), 0);
    assert_string_equal(c.node_address, "me:7000");
    assert_int_equal(cluster_nodes_read(&c, &list, &n, &e), 0);
    assert_int_equal(n, 0);
    (void)unlink(key);
}

static void nodes_file(void **state)
{
    const char *key = key_file(secret, sizeof(secret), 0400);
    char file[64] = "/tmp/fccd-nodes.XXXXXX", text[512];
    struct config c;
    struct error e;
    node_address *list;
    size_t n;
    int fd = mkstemp(file);

    (void)state;
    assert_true(fd >= 0 && dprintf(fd, "# ours\n a:1 # the first\n\nb:2\nme:7\n") > 0);
    (void)snprintf(text, sizeof(text), "NODE_LISTEN=me:7\nCLUSTER_KEY=%s\nNODES=%s\n", key, file);
    assert_int_equal(load(text, NULL, &c, &e), 0);
    assert_int_equal(cluster_nodes_read(&c, &list, &n, &e), 0);
    assert_int_equal(n, 2);
    assert_string_equal(list[1], "b:2");
    free(list);
    assert_true(dprintf(fd, "a b:3\n") > 0);
    wrong(text, NULL, ":6: \"a b:3\": allowed is host:port");
    (void)close(fd);
    (void)unlink(file);
    wrong(text, NULL, "NODES: \"/tmp/fccd-nodes.");
    wrong_with_key("NODE_LISTEN=me:7\nCLUSTER_KEY=%s\nNODES=/dev/null\n", key, "allowed is a regular file");
    (void)unlink(key);
}

static void nodes_mistakes(void **state)
{
    static const char *const addresses[] = {"node",    ":7000",   "node:",     "node:0",  "node:070", "node:65536",
                                            "node:7x", "no de:1", "[::1:7000", "[]:7000", "a,b:1",    "node:7000:"};
    const char *key = key_file(secret, sizeof(secret), 0600);
    char text[512], many[8600];

    (void)state;
    for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        (void)snprintf(text, sizeof(text), "NODE_LISTEN=%s\n", addresses[i]);
        wrong(text, NULL, "allowed is host:port");
    }
    wrong("NODE_ADDRESS=nonsense\n", NULL, "NODE_ADDRESS: \"nonsense\": allowed is host:port");
    wrong("NODE_LISTEN=me:7\n", NULL, "CLUSTER_KEY is empty");
    wrong("NODES=a:1\n", NULL, "NODE_LISTEN is empty, so this node speaks to no other: NODES must be empty too");
    wrong("NODE_ADDRESS=a:1\n", NULL, "NODE_ADDRESS must be empty too");
    wrong("CLUSTER_KEY=key\n", NULL, "CLUSTER_KEY: \"key\": allowed is an absolute path");
    wrong_with_key("NODE_LISTEN=me:7\nCLUSTER_KEY=%s\nNODES=a:1,,b:2\n", key, "NODES: entry 2: \"\": allowed is host:port");
    wrong_with_key("NODE_LISTEN=0.0.0.0:7\nCLUSTER_KEY=%s\n", key, "others cannot connect to that");
    wrong_with_key("NODE_LISTEN=[::]:7\nCLUSTER_KEY=%s\n", key, "others cannot connect to that");
    memset(many, 'x', sizeof(many));
    memcpy(many, "NODES=", 6);
    many[sizeof(many) - 1] = '\0';
    wrong(many, NULL, "allowed are lines of at most");
    many[5000] = '\0';
    wrong(many, NULL, "allowed are at most 4095 characters");
    (void)unlink(key);
}

/* Lets one more user read a file, by an access control list. False: this file system has none. */
static bool also_let(const char *file, uint32_t uid)
{
    /* As in the kernel's linux/posix_acl_xattr.h; tags: its owner, a user, its group, the mask, all others. */
    const struct {
        uint32_t version;
        struct {
            uint16_t tag, permissions;
            uint32_t id;
        } entries[5];
    } list = {2, {{0x01, 6, UINT32_MAX}, {0x02, 4, uid}, {0x04, 0, UINT32_MAX}, {0x10, 4, UINT32_MAX}, {0x20, 0, UINT32_MAX}}};

    return setxattr(file, "system.posix_acl_access", &list, sizeof(list), 0) == 0;
}

/* Whoever else may read the key, by whatever means, it is refused: the group, all, a user of an access control list, and those who may do so
 * through a name of another place. */
static void key_of_others(void **state)
{
    char link[128], says[32];

    (void)state;
    for (unsigned bit = 1; bit <= 04000; bit <<= 1) {
        unsigned mode = 0400 | bit;
        const char *key = key_file(secret, sizeof(secret), mode);
        (void)snprintf(says, sizeof(says), "its mode is %04o", mode);
        if (bit != 0400 && bit != 0200)
            wrong_with_key("NODE_LISTEN=me:7\nCLUSTER_KEY=%s\n", key, says);
        (void)snprintf(link, sizeof(link), "%s.link", key);
        assert_int_equal(symlink(key, link), 0);
        if (bit != 0400 && bit != 0200)
            wrong_with_key("NODE_LISTEN=me:7\nCLUSTER_KEY=%s\n", link, says);
        (void)unlink(link);
        (void)unlink(key);
    }
    const char *key = key_file(secret, sizeof(secret), 0600);
    if (also_let(key, 12345))
        wrong_with_key("NODE_LISTEN=me:7\nCLUSTER_KEY=%s\n", key, "its mode is 0640");
    (void)unlink(key);
}

static void key_mistakes(void **state)
{
    static const struct {
        size_t bytes;
        unsigned mode;
        const char *says;
    } cases[] = {{31, 0600, "it has 31 bytes: allowed are 32 to 4096"},
                 {4097, 0600, "it has 4097 bytes"},
                 {0, 0600, "0 bytes"},
                 {64, 0640, "its mode is 0640: allowed are 0600 and stricter"},
                 {64, 0604, "its mode is 0604"},
                 {64, 0700, "its mode is 0700"}};
    static char bytes[5000];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *key = key_file(bytes, cases[i].bytes, cases[i].mode);
        wrong_with_key("NODE_LISTEN=me:7\nCLUSTER_KEY=%s\n", key, cases[i].says);
        (void)unlink(key);
    }
    wrong("NODE_LISTEN=me:7\nCLUSTER_KEY=/nonexistent/key\n", NULL, "\"/nonexistent/key\": No such file");
    wrong("NODE_LISTEN=me:7\nCLUSTER_KEY=/tmp\n", NULL, "allowed is a regular file");
    wrong("NODE_LISTEN=me:7\nCLUSTER_KEY=/dev/null\n", NULL, "allowed is a regular file");
    const char *key = key_file(secret, sizeof(secret), 0600);
    (void)unlink(key);
    assert_int_equal(mkfifo(key, 0600), 0); /* nobody writes there: it must not be waited for */
    wrong_with_key("NODE_LISTEN=me:7\nCLUSTER_KEY=%s\n", key, "allowed is a regular file");
    (void)unlink(key);
    if (geteuid())
        return; /* only root can give a file away */
    key = key_file(secret, sizeof(secret), 0600);
    assert_int_equal(chown(key, 12345, 12345), 0);
    wrong_with_key("NODE_LISTEN=me:7\nCLUSTER_KEY=%s\n", key, "it belongs to uid 12345: it must be that of uid 0");
    (void)unlink(key);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes),        cmocka_unit_test(nodes_file),    cmocka_unit_test(nodes_mistakes),
        cmocka_unit_test(key_mistakes), cmocka_unit_test(key_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

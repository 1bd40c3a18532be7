// A double of an HCA on a lab node: an RDMA device below the PCI function of a NIC, with one active InfiniBand port
// and no queue pairs.
// soft-RoCE's devices have no PCI function, so no path to a GPU.
#include <linux/module.h>
#include <linux/netdevice.h>
#include <net/net_namespace.h>
#include <rdma/ib_verbs.h>

static char *nic = "eth2";
module_param(nic, charp, 0444);

struct hca {
	struct ib_device dev;
};
static struct hca *hca;

struct context {
	struct ib_ucontext ucontext;
};

static int query_device(struct ib_device *dev, struct ib_device_attr *attr, struct ib_udata *data)
{
	memset(attr, 0, sizeof(*attr));
	attr->max_pkeys = 1;
	return 0;
}

static int query_port(struct ib_device *dev, u32 port, struct ib_port_attr *attr)
{
	attr->state = IB_PORT_ACTIVE;
	attr->phys_state = IB_PORT_PHYS_STATE_LINK_UP;
	attr->max_mtu = attr->active_mtu = IB_MTU_4096;
	attr->active_speed = IB_SPEED_HDR;
	attr->active_width = IB_WIDTH_4X;
	attr->gid_tbl_len = attr->pkey_tbl_len = 1;
	attr->lid = attr->sm_lid = 1;
	return 0;
}

static int get_port_immutable(struct ib_device *dev, u32 port, struct ib_port_immutable *kept)
{
	kept->gid_tbl_len = kept->pkey_tbl_len = 1;
	return 0;
}

static enum rdma_link_layer get_link_layer(struct ib_device *dev, u32 port)
{
	return IB_LINK_LAYER_INFINIBAND;
}

static int query_gid(struct ib_device *dev, u32 port, int index, union ib_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	return 0;
}

static int query_pkey(struct ib_device *dev, u32 port, u16 index, u16 *pkey)
{
	*pkey = 0xffff;
	return 0;
}

static int alloc_ucontext(struct ib_ucontext *context, struct ib_udata *data)
{
	return -EOPNOTSUPP;
}

static void dealloc_ucontext(struct ib_ucontext *context)
{
}

static const struct ib_device_ops ops = {
	.owner = THIS_MODULE, .driver_id = RDMA_DRIVER_UNKNOWN, .uverbs_abi_ver = 1,
	.query_device = query_device, .query_port = query_port, .get_port_immutable = get_port_immutable,
	.get_link_layer = get_link_layer, .query_gid = query_gid, .query_pkey = query_pkey,
	.alloc_ucontext = alloc_ucontext, .dealloc_ucontext = dealloc_ucontext,
	INIT_RDMA_OBJ_SIZE(ib_ucontext, context, ucontext),
};

static int __init start(void)
{
	struct net_device *netdev = dev_get_by_name(&init_net, nic);
	int failed = -ENODEV;

	if (!netdev)
		return failed;
	hca = ib_alloc_device(hca, dev);
	if (hca && netdev->dev.parent) {
		hca->dev.node_type = RDMA_NODE_IB_CA;
		hca->dev.phys_port_cnt = 1;
		hca->dev.node_guid = cpu_to_be64(0x525400fffe4c0100);
		/* A virtio device's parent is its PCI function. */
		hca->dev.dev.parent = netdev->dev.parent->parent;
		ib_set_device_ops(&hca->dev, &ops);
		failed = ib_register_device(&hca->dev, "double%d", NULL);
		if (failed)
			ib_dealloc_device(&hca->dev);
	}
	dev_put(netdev);
	return failed;
}

static void __exit stop(void)
{
	ib_unregister_device(&hca->dev);
	ib_dealloc_device(&hca->dev);
}
module_init(start);
module_exit(stop);
MODULE_LICENSE("GPL");
